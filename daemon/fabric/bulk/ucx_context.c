/* How UCX is set up for the bulk path; see ucx_context.h. */
#include "daemon/fabric/bulk/ucx_context.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

/* sysv as well: posix is the shared memory that was measured and tried under kills. */
static const char DEFAULT_TLS[] = "^tcp,sysv";
int bulk_ucx_error(ucs_status_t status)
{
        switch (status) {
        case UCS_OK:
                return 0;
        case UCS_ERR_NO_MEMORY:
                return -ENOMEM;
        case UCS_ERR_CANCELED:
                return -ECANCELED;
        case UCS_ERR_NO_DEVICE:
        case UCS_ERR_UNREACHABLE:
                return -ENODEV;
        default:
                return -EIO;
        }
}

/* Whether one of the names between commas is `name`. */
static bool list_has(const char *list, const char *name)
{
        size_t length = strlen(name);

        for (const char *at = list; at; at = strchr(at, ',')) {
                at += *at == ',';
                if (strncmp(at, name, length) == 0 && (at[length] == ',' || !at[length]))
                        return true;
        }
        return false;
}

int bulk_ucx_choose_tls(const char *tls, const char **ret, struct fault *fault)
{
        if (!tls || !*tls)
                tls = getenv("UCX_TLS");
        if (!tls || !*tls)
                tls = DEFAULT_TLS;
        if (*tls == '^' ? !list_has(tls + 1, "tcp") : list_has(tls, "all"))
                return fault_set(fault, ZERO_EINVAL,
                                 "UCX transports '%.64s' include tcp, whose ports do not survive "
                                 "hostile bytes: leave it out (^tcp), or name tcp itself on a "
                                 "closed network",
                                 tls);
        *ret = tls;
        return 0;
}

/* UCX tells the transports of a context to people only: "#  resource 0 : ... self/memory0". */
static int read_transports(char *text, char **ret)
{
        CLEANUP(cleanup_free) char *names = calloc(1, strlen(text) + 1);
        char *rest = text;

        if (!names)
                return -ENOMEM;
        for (char *line = strsep(&rest, "\n"); line; line = strsep(&rest, "\n")) {
                char *name = strrchr(line, ' ');
                if (!name || !strstr(line, "resource ") || !strchr(name, '/'))
                        continue;
                *strchr(++name, '/') = '\0';
                if (list_has(names, name))
                        continue;
                if (*names)
                        strcat(names, ",");
                strcat(names, name);
        }
        *ret = STEAL(names);
        return 0;
}

static int list_transports(ucp_context_h context, char **ret)
{
        CLEANUP(cleanup_free) char *text = NULL;
        size_t size;
        FILE *info = open_memstream(&text, &size);

        if (!info)
                return -errno;
        ucp_context_print_info(context, info);
        if (fclose(info))
                return -ENOMEM;
        return read_transports(text, ret);
}

/* Whether the user's environment sets what is called UCX_MM_NAME, or UCX_POSIX_NAME. */
static bool user_sets(const char *setting)
{
        char posix[64];

        snprintf(posix, sizeof posix, "UCX_POSIX_%s", setting + strlen("UCX_MM_"));
        return getenv(setting) || getenv(posix);
}

static int set(ucp_config_t *config, const char *setting, const char *value)
{
        return bulk_ucx_error(ucp_config_modify(config, setting + strlen("UCX_"), value));
}

/*
 * The buffers of shared memory, which both sides of a link have mapped: UCX's own, or a longer
 * queue of these, would cost every peer megabytes.  A payload in pieces passes no slower: few
 * buffers stay in the cache.
 */
static int configure_buffers(ucp_config_t *config)
{
        static const char *const settings[][2] = {
                { "UCX_MM_SEG_SIZE", "33000" }, /* a piece fits with its headers */
                { "UCX_MM_FIFO_SIZE", "8" },
                { "UCX_MM_RX_BUFS_GROW", "9" }, /* UCX has one more than the queue is long */
        };
        int r = 0;

        for (size_t i = 0; i < sizeof settings / sizeof *settings && r == 0; i++)
                if (!user_sets(settings[i][0]))
                        r = set(config, settings[i][0], settings[i][1]);
        return r;
}

static int configure(ucp_config_t *config, const char *tls)
{
        const char *const settings[][2] = {
                { "UCX_TLS", tls },
                /* error mode PEER silently leaves shared memory out unless this is set */
                { "UCX_MM_ERROR_HANDLING", "y" },
                /* only the receiver writes its own memory */
                { "UCX_RNDV_SCHEME", "get_zcopy" },
        };
        int r = configure_buffers(config);

        for (size_t i = 0; i < sizeof settings / sizeof *settings && r == 0; i++)
                r = set(config, settings[i][0], settings[i][1]);
        return r;
}

int bulk_ucx_context_new(const char *tls, ucp_context_h *ret, char **ret_tls)
{
        const ucp_params_t params = {
                .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
                .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
                .name = "zerod",
        };
        ucp_config_t *config;
        ucp_context_h context;
        int r = bulk_ucx_error(ucp_config_read(NULL, NULL, &config));

        if (r)
                return r;
        /* UCX reads memory of other processes only where it is told that reading can be called off.
         * It cannot; ucx.c does without.  UCX takes this from the environment alone. */
        setenv("UCX_CMA_MEMORY_INVALIDATE", "y", false);
        r = configure(config, tls);
        if (r == 0)
                r = bulk_ucx_error(ucp_init(&params, config, &context));
        ucp_config_release(config);
        if (r)
                return r;
        r = list_transports(context, ret_tls);
        if (r) {
                ucp_cleanup(context);
                return r;
        }
        *ret = context;
        return 0;
}

bool bulk_ucx_knows_cuda(ucp_context_h context)
{
        ucp_context_attr_t attributes = { .field_mask = UCP_ATTR_FIELD_MEMORY_TYPES };

        return ucp_context_query(context, &attributes) == UCS_OK &&
               attributes.memory_types >> UCS_MEMORY_TYPE_CUDA & 1;
}

/* Of memory that a daemon shares with trainers.  cuda_ipc passes it between processes since UCX
 * 1.22.1; older ones copy it through the host's memory, at half the speed of staging it here. */
static bool reads_gpus(const char *transport, unsigned version)
{
        static const char hosts[] = "self,posix,sysv,cma,knem,xpmem,tcp,cuda_copy,gdr_copy";

        return strcmp(transport, "cuda_ipc") == 0 ? version >= 12201 : !list_has(hosts, transport);
}

/* "#   lane[1]:  3:cma/memory.0 md[3] -> md[3]/cma/sysdev[255] rma_bw#0" */
void bulk_ucx_read_lanes(char *text, unsigned version, struct ucx_reads *ret)
{
        char *rest = text;

        for (char *line = strsep(&rest, "\n"); line; line = strsep(&rest, "\n")) {
                char *name = strstr(line, "lane[");

                if (!name || !strstr(line, "rma_bw#"))
                        continue;
                ret->any = true;
                name = strchr(name, ':');
                name = name ? strchr(name + 1, ':') : NULL;
                if (!name || !strchr(++name, '/'))
                        continue;
                *strchr(name, '/') = '\0';
                ret->gpus = ret->gpus || reads_gpus(name, version);
        }
}

/* This, too, is told to people only. */
struct ucx_reads bulk_ucx_reads(ucp_ep_h endpoint)
{
        CLEANUP(cleanup_free) char *text = NULL;
        struct ucx_reads reads = { 0 };
        unsigned major, minor, release;
        size_t size;
        FILE *info = open_memstream(&text, &size);

        if (!info)
                return reads;
        ucp_ep_print_info(endpoint, info);
        ucp_get_version(&major, &minor, &release);
        if (fclose(info) == 0)
                bulk_ucx_read_lanes(text, major * 10000 + minor * 100 + release, &reads);
        return reads;
}
