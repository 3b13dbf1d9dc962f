/* How UCX is set up for the bulk path; see bulk_ucx_context.h. */
#include "daemon/fabric/bulk_ucx_context.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

/* sysv as well: posix is the shared memory that was measured and tried under kills. */
static const char DEFAULT_TLS[] = "^tcp,sysv";
/* Bytes; a piece fits with its headers. */
#define UCX_SEGMENT "65000"

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

static int configure(ucp_config_t *config, const char *tls)
{
        const char *const settings[][2] = {
                { "TLS", tls },
                /* error mode PEER silently leaves shared memory out unless this is set */
                { "MM_ERROR_HANDLING", "y" },
                /* shared memory's buffers: larger than UCX's own are faster while a payload stays
                 * in cache; kept below 64 KiB */
                { "MM_SEG_SIZE", UCX_SEGMENT },
                { "MM_RX_BUFS_GROW", "128" },
                /* only the receiver writes its own memory */
                { "RNDV_SCHEME", "get_zcopy" },
        };

        for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
                ucs_status_t status = ucp_config_modify(config, settings[i][0], settings[i][1]);
                if (status != UCS_OK)
                        return bulk_ucx_error(status);
        }
        return 0;
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

/* This, too, is told to people only: "lane[1]: ... rma_bw#0". */
bool bulk_ucx_can_get(ucp_ep_h endpoint)
{
        CLEANUP(cleanup_free) char *text = NULL;
        size_t size;
        FILE *info = open_memstream(&text, &size);

        if (!info)
                return false;
        ucp_ep_print_info(endpoint, info);
        return fclose(info) == 0 && strstr(text, "rma_bw#");
}
