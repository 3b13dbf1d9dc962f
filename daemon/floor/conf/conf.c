/*
 * conf.c - applies the sources in order: defaults, file, environment, command line.  Then sets the
 * defaults that depend on where the process runs.
 */
#include "daemon/floor/conf/cluster_parse.h"
#include "daemon/floor/conf/source.h"

#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/floor/base/chunk.h"
#include "daemon/floor/base/privilege.h"

static const char default_file[] = "/etc/zerod/zerod.conf";

/* A path below $XDG_RUNTIME_DIR, which root and services do not have. */
static int resolve_path(struct loaded *l, const char *name, const char *below, const char *fixed,
                        struct fault *fault)
{
        const struct option *o = option_find(name, strlen(name));
        const char *directory = geteuid() == 0 ? NULL : getenv("XDG_RUNTIME_DIR");
        char scratch[OPTION_NUMBER];
        CLEANUP(cleanup_free)
        char *path = NULL;

        if (option_get(o, &l->conf, scratch)[0])
                return 0;
        if (!directory || directory[0] != '/')
                return loaded_set(l, o, fixed, (struct origin){ CONF_DEFAULT }, "default", fault);
        if (asprintf(&path, "%s/%s", directory, below) < 0) {
                path = NULL;
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        }
        return loaded_set(l, o, path, (struct origin){ CONF_DEFAULT }, "$XDG_RUNTIME_DIR", fault);
}

static int set_joined(struct loaded *l, const struct option *o, const char *directory,
                      const char *below, const char *where, struct fault *fault)
{
        CLEANUP(cleanup_free) char *path = NULL;

        if (asprintf(&path, "%s%s", directory, below) < 0) {
                path = NULL;
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        }
        return loaded_set(l, o, path, (struct origin){ CONF_DEFAULT }, where, fault);
}

/* The directory that a service manager names; NULL: none, or several. */
static const char *managed(const char *variable)
{
        const char *given = getenv(variable);

        return given && given[0] == '/' && !strchr(given, ':') ? given : NULL;
}

static int resolve_log_dir(struct loaded *l, struct fault *fault)
{
        const char *given = managed("LOGS_DIRECTORY");

        if (l->conf.log_dir[0] || !given)
                return 0;
        return set_joined(l, option_find("log_dir", strlen("log_dir")), given, "",
                          "$LOGS_DIRECTORY", fault);
}

/* The directory that a service manager names, else the user's, else the system's. */
static int resolve_membership_dir(struct loaded *l, struct fault *fault)
{
        static const struct {
                const char *variable, *below, *where;
        } places[] = { { "XDG_STATE_HOME", "/zerod", "$XDG_STATE_HOME" },
                       { "HOME", "/.local/state/zerod", "$HOME" } };
        const struct option *o = option_find("membership_dir", strlen("membership_dir"));
        const char *given = managed("STATE_DIRECTORY");

        if (l->conf.membership_dir[0])
                return 0;
        if (given)
                return set_joined(l, o, given, "", "$STATE_DIRECTORY", fault);
        for (size_t i = 0; geteuid() != 0 && i < sizeof(places) / sizeof(places[0]); i++) {
                const char *directory = getenv(places[i].variable);

                if (directory && directory[0] == '/')
                        return set_joined(l, o, directory, places[i].below, places[i].where, fault);
        }
        return loaded_set(l, o, "/var/lib/zerod", (struct origin){ CONF_DEFAULT }, "default",
                          fault);
}

static int resolve_node(struct loaded *l, struct fault *fault)
{
        const struct option *o = option_find("node", strlen("node"));
        char host[NODE_NAME_MAX + 1];

        if (l->conf.node[0])
                return 0;
        if (gethostname(host, sizeof(host)) != 0 || !node_name_valid(host))
                strcpy(host, "localhost");
        return loaded_set(l, o, host, (struct origin){ CONF_DEFAULT }, "host name", fault);
}

static int resolve_chunk(struct loaded *l, struct fault *fault)
{
        char number[OPTION_NUMBER];

        if (l->conf.chunk)
                return 0;
        snprintf(number, sizeof(number), "%" PRIu32, chunk_default());
        return loaded_set(l, option_find("chunk", strlen("chunk")), number,
                          (struct origin){ CONF_DEFAULT }, "default", fault);
}

static int resolve(struct loaded *l, struct fault *fault)
{
        int r = resolve_node(l, fault);

        if (r == 0)
                r = resolve_path(l, "socket", "zerod.sock", "/run/zerod/zerod.sock", fault);
        if (r == 0)
                r = resolve_path(l, "state_dir", "zerod", "/dev/shm/zerod", fault);
        if (r == 0)
                r = resolve_membership_dir(l, fault);
        if (r == 0)
                r = resolve_log_dir(l, fault);
        if (r == 0)
                r = resolve_chunk(l, fault);
        return r;
}

int conf_parse(const char *name, const char *text, size_t size, struct conf **ret,
               struct fault *fault)
{
        CLEANUP(cleanup_loaded_free)
        struct loaded *l = NULL;
        int r = loaded_new(&l, fault);

        if (r)
                return r;
        l->file = strdup(name);
        if (!l->file)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        r = source_text(l, name, text, size, fault);
        if (r == 0)
                r = resolve(l, fault);
        if (r == 0)
                *ret = &STEAL(l)->conf;
        return r;
}

static int load_sources(struct loaded *l, const struct arguments *a, struct fault *fault)
{
        const char *named = a->config ? a->config : getenv("ZEROD_CONFIG");
        int r = source_file(l, named ? named : default_file, named != NULL, fault);

        if (r == 0)
                r = source_environment(l, environ, fault);
        if (r == 0)
                r = source_arguments(l, a, fault);
        if (r == 0)
                r = resolve(l, fault);
        return r;
}

static void print_option(void *arg, const char *name, const char *value, const char *source,
                         const char *doc)
{
        printf("%s = %s  ; %s\n", name, value, source);
}

/* A start goes on without, and looks again at each connection: so no reload fails of a resolver
 * that is down, or that the unit keeps out. */
static void check_hosts(const struct cluster *c)
{
        struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found;

        for (uint32_t i = 0; i < c->n_nodes && c->nodes[i].host[0]; i++) {
                int r = getaddrinfo(c->nodes[i].host, NULL, &hints, &found);

                if (r)
                        fprintf(stderr,
                                "zerod: peers: node %s: host %s: %s: a start goes on without this "
                                "node, and looks again at each connection\n",
                                c->nodes[i].name, c->nodes[i].host, gai_strerror(r));
                else
                        freeaddrinfo(found);
        }
}

/* A directory that is missing is made by a start: by root, wherever it is. */
static int check_state_dir(const char *path, bool root, struct fault *fault)
{
        CLEANUP(cleanup_free) char *copy = strdup(path);
        CLEANUP(cleanup_close) int fd = -1;
        const char *parent = copy ? dirname(copy) : "/";

        if (access(path, F_OK) == 0)
                return privilege_state_directory(path, &fd, fault);
        if (access(parent, root ? F_OK : W_OK | X_OK) == 0)
                return 0;
        return fault_set(fault, ZERO_EIO, "state_dir %s is missing and cannot be made: %s: %s",
                         path, parent, strerror(errno));
}

/* What --check prints.  Reads the key files as the user that root becomes, as a start does. */
static int report(const struct conf *conf, struct fault *fault)
{
        struct cluster cluster;
        struct http_place http;
        bool root = geteuid() == 0;
        int r = privilege_drop(conf->user, NULL, 0, fault);

        if (!r)
                r = conf_http(conf, &http, fault);
        if (!r)
                r = conf_cluster(conf, &cluster, fault);
        if (!r)
                r = check_state_dir(conf->state_dir, root, fault);
        if (r)
                return r;
        check_hosts(&cluster);
        conf_each(conf, print_option, NULL);
        printf("; %u node%s, %s; the configuration is good\n", cluster.n_nodes,
               cluster.n_nodes == 1 ? "" : "s",
               cluster.has_key_next ? "two keys"
               : cluster.has_key    ? "one key"
                                    : "no key");
        explicit_bzero(&cluster, sizeof(cluster));
        explicit_bzero(&http, sizeof(http));
        return CONF_DONE;
}

/* A default may depend on the process's user, who is another one since the start. */
static bool same(const struct loaded *a, const struct loaded *b, const struct option *o)
{
        char one[OPTION_NUMBER], other[OPTION_NUMBER];
        size_t i = (size_t)(o - options);

        return (a->origin[i].source == CONF_DEFAULT && b->origin[i].source == CONF_DEFAULT) ||
               strcmp(option_get(o, &a->conf, one), option_get(o, &b->conf, other)) == 0;
}

int conf_load_again(struct conf *conf,
                    void (*changed)(void *arg, const char *name, const char *was, const char *is,
                                    bool live),
                    void *arg, struct fault *fault)
{
        struct loaded *l = CONTAINER_OF(conf, struct loaded, conf);
        CLEANUP(cleanup_loaded_free)
        struct loaded *fresh = NULL;
        struct arguments a;
        int r = arguments_read(l->argc, l->argv, &a, fault);

        if (r == 0)
                r = loaded_new(&fresh, fault);
        if (r == 0)
                r = load_sources(fresh, &a, fault);
        if (r)
                return r;
        for (uint32_t i = 0; i < N_OPTIONS; i++) {
                const struct option *o = &options[i];
                char was[OPTION_NUMBER], is[OPTION_NUMBER];

                if (same(l, fresh, o))
                        continue;
                changed(arg, o->name, option_get(o, conf, was), option_get(o, &fresh->conf, is),
                        option_is_live(o));
                if (option_is_live(o))
                        r = loaded_set(l, o, option_get(o, &fresh->conf, is), fresh->origin[i],
                                       "reload", fault);
                if (r)
                        return r;
        }
        free(l->file);
        l->file = STEAL(fresh->file);
        return 0;
}

int conf_load(int argc, char **argv, struct conf **ret, struct fault *fault)
{
        CLEANUP(cleanup_loaded_free)
        struct loaded *l = NULL;
        struct arguments a;
        int r = arguments_read(argc, argv, &a, fault);

        if (r)
                return r;
        if (a.help || a.version) {
                if (a.help)
                        conf_help(stdout);
                else
                        puts("zerod " ZEROD_VERSION);
                return CONF_DONE;
        }
        r = loaded_new(&l, fault);
        if (r)
                return r;
        l->argc = argc;
        l->argv = argv;
        r = load_sources(l, &a, fault);
        if (r == 0 && a.check)
                r = report(&l->conf, fault);
        if (r == 0)
                *ret = &STEAL(l)->conf;
        return r;
}
