/* What our paths are measured against. */
#include <arpa/inet.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/bulk/bench.h"

enum { DEADLINE_S = 120 };

/* ---- raw TCP ---- */

static int listen_on_loopback(struct sockaddr_in *ret)
{
        socklen_t size = sizeof *ret;
        int fd = socket(AF_INET, SOCK_STREAM, 0);

        *ret = (struct sockaddr_in){ .sin_family = AF_INET };
        ret->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (fd >= 0 && (bind(fd, (struct sockaddr *)ret, sizeof *ret) || listen(fd, 1) ||
                        getsockname(fd, (struct sockaddr *)ret, &size))) {
                close(fd);
                return -1;
        }
        return fd;
}

/* Reads everything, payload by payload, and answers with a byte. */
static void drain(const struct sockaddr_in *from, const struct load *load)
{
        char *buffer = malloc(load->size), byte = 0;
        int fd = socket(AF_INET, SOCK_STREAM, 0);

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(DEADLINE_S);
        if (!buffer || connect(fd, (const struct sockaddr *)from, sizeof *from))
                _exit(1);
        memset(buffer, 1, load->size);
        if (write(fd, &byte, 1) != 1)
                _exit(1);
        for (size_t i = 0; i < load->count; i++) {
                if (recv(fd, buffer, load->size, MSG_WAITALL) != (ssize_t)load->size)
                        _exit(1);
        }
        _exit(write(fd, &byte, 1) != 1);
}

static bool write_all(int fd, const char *p, size_t n)
{
        while (n > 0) {
                ssize_t w = send(fd, p, n, MSG_NOSIGNAL);
                if (w <= 0)
                        return false;
                p += w;
                n -= (size_t)w;
        }
        return true;
}

static double pour(int fd, const struct load *load, char *buffer)
{
        uint64_t begun;
        char byte;

        memset(buffer, 2, load->size);
        if (read(fd, &byte, 1) != 1)
                return 0;
        begun = uv_hrtime();
        for (size_t i = 0; i < load->count; i++) {
                if (!write_all(fd, buffer, load->size))
                        return 0;
        }
        if (read(fd, &byte, 1) != 1)
                return 0;
        return (double)load->size * (double)load->count * 1e9 / (double)(uv_hrtime() - begun);
}

double run_raw_tcp(const struct load *load)
{
        struct sockaddr_in address;
        int listener = listen_on_loopback(&address), fd;
        char *buffer = malloc(load->size);
        double rate = 0;
        pid_t child;

        if (listener < 0 || !buffer) {
                free(buffer);
                return 0;
        }
        child = fork();
        if (child == 0)
                drain(&address, load);
        fd = accept(listener, NULL, NULL);
        if (fd >= 0)
                rate = pour(fd, load, buffer);
        close(fd);
        close(listener);
        waitpid(child, NULL, 0);
        free(buffer);
        return rate;
}

/* ---- libsodium ---- */

static void protect(bool aes, const crypto_aead_aes256gcm_state *state, const uint8_t *key,
                    const uint8_t *nonce, uint8_t *to, const uint8_t *from, size_t n,
                    const uint8_t *additional, size_t n_additional)
{
        uint8_t tag[crypto_aead_aes256gcm_ABYTES];

        if (aes)
                crypto_aead_aes256gcm_encrypt_detached_afternm(to, tag, NULL, from, n, additional,
                                                               n_additional, NULL, nonce, state);
        else
                crypto_aead_chacha20poly1305_ietf_encrypt_detached(
                        to, tag, NULL, from, n, additional, n_additional, NULL, nonce, key);
}

double run_sodium(bool encrypted, const struct load *load)
{
        uint8_t key[crypto_aead_aes256gcm_KEYBYTES] = { 1 };
        uint8_t nonce[crypto_aead_aes256gcm_NPUBBYTES] = { 0 };
        uint8_t *from = malloc(load->size), *to = malloc(load->size);
        crypto_aead_aes256gcm_state state;
        uint64_t begun = 0;

        if (from && to && sodium_init() >= 0) {
                bool aes = bulk_tcp_has_aes();

                memset(from, 1, load->size);
                memset(to, 2, load->size);
                if (aes)
                        crypto_aead_aes256gcm_beforenm(&state, key);
                begun = uv_hrtime();
                for (size_t i = 0; i < load->count; i++) {
                        memcpy(nonce, &i, sizeof i);
                        if (encrypted)
                                protect(aes, &state, key, nonce, to, from, load->size, NULL, 0);
                        else
                                protect(aes, &state, key, nonce, to, NULL, 0, from, load->size);
                }
                begun = uv_hrtime() - begun;
        }
        free(from);
        free(to);
        return begun ? (double)load->size * (double)load->count * 1e9 / (double)begun : 0;
}

/* ---- ucx_perftest ---- */

static pid_t start_perftest(const char *tls, const char *const argv[], int out)
{
        pid_t child = fork();

        if (child)
                return child;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(DEADLINE_S);
        setenv("UCX_TLS", tls, 1);
        setenv("UCX_POSIX_ERROR_HANDLING", "y", 1); /* else -e leaves shared memory out */
        dup2(out, STDOUT_FILENO);
        dup2(out, STDERR_FILENO);
        execvp(argv[0], (char *const *)argv);
        _exit(127);
}

/* A port that was free a moment ago. */
static int free_port(void)
{
        struct sockaddr_in address;
        int fd = listen_on_loopback(&address);

        if (fd >= 0)
                close(fd);
        return ntohs(address.sin_port);
}

/* The last line's fifth field: average bandwidth in MiB a second. */
static double read_rate(FILE *in)
{
        char line[512];
        double rate = 0, value;

        while (fgets(line, sizeof line, in)) {
                if (sscanf(line, "%*[^,],%*[^,],%*[^,],%*[^,],%lf", &value) == 1)
                        rate = value * (1 << 20);
        }
        return rate;
}

double run_perftest(const char *tls, const struct load *load)
{
        char port[16], size[32], count[32];
        const char *const server[] = { "ucx_perftest", "-p", port, NULL };
        const char *const client[] = { "ucx_perftest", "-p", port,        "-t", "ucp_am_bw", "-s",
                                       size,           "-n", count,       "-w", "4",         "-f",
                                       "-v",           "-e", "127.0.0.1", NULL };
        int out[2], sink[2];
        pid_t child[2];
        double rate;
        FILE *in;

        if (pipe(out) || pipe(sink))
                return 0;
        snprintf(port, sizeof port, "%d", free_port());
        snprintf(size, sizeof size, "%zu", load->size);
        snprintf(count, sizeof count, "%zu", load->count);
        child[0] = start_perftest(tls, server, sink[1]);
        usleep(300000); /* it does not say when it listens */
        child[1] = start_perftest(tls, client, out[1]);
        close(out[1]);
        in = fdopen(out[0], "r");
        rate = in ? read_rate(in) : 0;
        if (in)
                fclose(in);
        for (int i = 1; i >= 0; i--) {
                waitpid(child[i], NULL, 0);
                if (i == 1)
                        kill(child[0], SIGTERM);
        }
        close(sink[0]);
        close(sink[1]);
        return rate;
}
