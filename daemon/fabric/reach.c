/* Whether UCX may reach another node; see reach.h. */
#include "daemon/fabric/reach.h"

#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/cleanup.h"

static bool hash_boot(crypto_generichash_state *hash)
{
        CLEANUP(cleanup_close)
        int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
        uint8_t id[64];
        ssize_t n = fd < 0 ? -1 : read(fd, id, sizeof id);

        if (n <= 0)
                return false;
        crypto_generichash_update(hash, id, (size_t)n);
        return true;
}

static bool hash_namespaces(crypto_generichash_state *hash)
{
        static const char *const names[] = { "pid", "ipc", "net", "user" };

        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
                char path[64];
                struct stat st;
                uint64_t id[2];
                snprintf(path, sizeof path, "/proc/self/ns/%s", names[i]);
                if (stat(path, &st))
                        return false;
                id[0] = st.st_dev;
                id[1] = st.st_ino;
                crypto_generichash_update(hash, (const uint8_t *)id, sizeof id);
        }
        return true;
}

void reach_host(uint8_t ret[static REACH_HOST])
{
        crypto_generichash_state hash;
        uid_t user = geteuid();

        crypto_generichash_init(&hash, NULL, 0, REACH_HOST);
        crypto_generichash_update(&hash, (const uint8_t *)&user, sizeof user);
        if (hash_boot(&hash) && hash_namespaces(&hash))
                crypto_generichash_final(&hash, ret, REACH_HOST);
        else
                randombytes_buf(ret, REACH_HOST); /* a host that no other node is on */
}

static bool stays_on_host(const char *name, size_t n)
{
        static const char *const prefixes[] = { "self",  "posix", "sysv", "cma",  "knem",
                                                "xpmem", "cuda",  "gdr",  "rocm", "ze_" };

        for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
                size_t length = strlen(prefixes[i]);
                if (n >= length && strncmp(name, prefixes[i], length) == 0)
                        return true;
        }
        return false;
}

static bool names(const char *list, const char *name, size_t n)
{
        for (; *list; list += *list == ',') {
                size_t length = strcspn(list, ",");
                if (length == n && strncmp(list, name, n) == 0)
                        return true;
                list += length;
        }
        return false;
}

bool reach_across(const char *ours, const char *theirs)
{
        for (; *ours; ours += *ours == ',') {
                size_t n = strcspn(ours, ",");
                if (n && !stays_on_host(ours, n) && names(theirs, ours, n))
                        return true;
                ours += n;
        }
        return false;
}
