/*
 * key.c - the file with the cluster's key: 32 bytes, or 64 hexadecimal digits and perhaps
 * a line feed.
 *
 * Rule: no buffer keeps any of the key, and no fault shows any of it.
 */
#include "daemon/floor/conf/cluster_parse.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEY_HEX = 2 * CLUSTER_KEY, KEY_FILE_MAX = KEY_HEX + 1 };

static int check_file(int fd, const char *option, const char *path, struct fault *fault)
{
        struct stat st;

        if (fstat(fd, &st) != 0)
                return fault_set(fault, ZERO_EIO, "%s: %s: %s", option, text_quote(path).text,
                                 strerror(errno));
        if (!S_ISREG(st.st_mode))
                return fault_set(fault, ZERO_EINVAL, "%s: %s is not a regular file", option,
                                 text_quote(path).text);
        if (st.st_uid != 0 && st.st_uid != geteuid())
                return fault_set(fault, ZERO_EPERM,
                                 "%s: %s belongs to user %u, who can read and change it: chown it "
                                 "to root or to zerod's user, and make a new key",
                                 option, text_quote(path).text, st.st_uid);
        if (st.st_mode & (S_IRWXG | S_IRWXO))
                return fault_set(fault, ZERO_EPERM,
                                 "%s: others have access to %s (mode %04o); chmod 600 it, and make "
                                 "a new key if they may have read it",
                                 option, text_quote(path).text, st.st_mode & 07777);
        return 0;
}

static bool decode(const uint8_t *text, size_t n, uint8_t ret_key[static CLUSTER_KEY])
{
        size_t length = 0;

        if (n == CLUSTER_KEY) {
                memcpy(ret_key, text, n);
                return true;
        }
        if (n == KEY_FILE_MAX && text[KEY_HEX] == '\n')
                n--;
        return n == KEY_HEX &&
               sodium_hex2bin(ret_key, CLUSTER_KEY, (const char *)text, n, NULL, &length, NULL) ==
                       0 &&
               length == CLUSTER_KEY;
}

int key_read(const char *option, const char *path, uint8_t ret_key[static CLUSTER_KEY],
             struct fault *fault)
{
        CLEANUP(cleanup_close)
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        uint8_t text[KEY_FILE_MAX + 1], key[CLUSTER_KEY];
        ssize_t n;
        int r;

        if (fd < 0 && errno == EACCES)
                return fault_set(fault, ZERO_EPERM,
                                 "%s: %s cannot be read by zerod's user, %u: chown it to that user",
                                 option, text_quote(path).text, (unsigned)geteuid());
        if (fd < 0)
                return fault_set(fault, ZERO_EIO, "%s: %s: %s", option, text_quote(path).text,
                                 strerror(errno));
        r = check_file(fd, option, path, fault);
        if (r)
                return r;
        n = read(fd, text, sizeof(text)); /* a regular file: all that is there */
        if (n < 0)
                return fault_set(fault, ZERO_EIO, "%s: %s: %s", option, text_quote(path).text,
                                 strerror(errno));
        if (!decode(text, (size_t)n, key))
                r = fault_set(fault, ZERO_EINVAL,
                              "%s: %s must hold %d bytes, or %d hexadecimal digits", option,
                              text_quote(path).text, CLUSTER_KEY, KEY_HEX);
        else if (sodium_is_zero(key, sizeof(key)))
                r = fault_set(fault, ZERO_EINVAL, "%s: the key in %s is all zeros", option,
                              text_quote(path).text);
        else
                memcpy(ret_key, key, sizeof(key));
        sodium_memzero(text, sizeof(text));
        sodium_memzero(key, sizeof(key));
        return r;
}
