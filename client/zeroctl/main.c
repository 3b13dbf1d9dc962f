/* zeroctl: finds the subcommand, connects, runs it. */
#include "ctl.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nearest.h"

static const struct command *const commands[] = {
        &command_status,     &command_jobs,    &command_shards, &command_top,
        &command_ping,       &command_checksum, &command_config, &command_drop,
        &command_checkpoint, &command_restore, &command_export, &command_import,
        &command_view,       &command_add_node, &command_remove_node, &command_takeover,
};

enum { N_COMMANDS = sizeof(commands) / sizeof(commands[0]), TIMEOUT_MAX_S = 86400, COUNT_MAX = 1000000000 };

static const char options_help[] =
        "\n"
        "Options:\n"
        "  -s, --socket PATH      zerod's socket (default: $ZEROD_SOCKET, else\n"
        "                         $XDG_RUNTIME_DIR/zerod.sock, else /run/zerod/zerod.sock)\n"
        "  -j, --json             print zerod's answer as JSON\n"
        "  -t, --timeout SECONDS  how long to wait for zerod (default: 60)\n"
        "      --once             top: print one picture and end\n"
        "      --keep N           checkpoint: delete all of the job's in DIR but the newest N\n"
        "      --every N          checkpoint: one every N steps; 0: no more\n"
        "      --node-is-dead NODE[,NODE]...\n"
        "                         takeover: do not wait for the votes of these\n"
        "      --no-wait          add-node, remove-node, takeover: do not wait until jobs have moved\n"
        "      --dtype TYPE       export: fp32 (default) or serve, what trainers are given\n"
        "  -h, --help             this text\n"
        "      --version          zeroctl's version\n"
        "\n"
        "Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no connection to zerod.\n";

struct arguments {
        const char *socket;
        uint32_t timeout_ms;
        const struct command *command; /* NULL: help or version was printed */
};

static void print_help(FILE *out)
{
        fputs("Usage: zeroctl [OPTION]... COMMAND [JOB [DIR | FILE] | NODE]\n\n"
              "Shows and manages the jobs and the nodes of zerod, the parameter-partition service.\n\n"
              "Commands:\n",
              out);
        for (size_t i = 0; i < N_COMMANDS; i++)
                fprintf(out, "  %-11s %-9s  %s\n", commands[i]->name,
                        commands[i]->argument ? commands[i]->argument : "", commands[i]->summary);
        fputs(options_help, out);
}

static int parse_timeout(const char *text, uint32_t *ret_ms)
{
        char *end;
        long seconds = strtol(text, &end, 10);

        if (end == text || *end || seconds < 1 || seconds > TIMEOUT_MAX_S) {
                ctl_error("--timeout is 1 to %d seconds, not '%s'", TIMEOUT_MAX_S, text);
                return CTL_USAGE;
        }
        *ret_ms = (uint32_t)seconds * 1000;
        return CTL_OK;
}

static int parse_count(const char *option, const char *text, long *ret)
{
        char *end;
        long n = strtol(text, &end, 10);

        if (end == text || *end || n < 0 || n > COUNT_MAX) {
                ctl_error("%s is 0 to %d, not '%s'", option, COUNT_MAX, text);
                return CTL_USAGE;
        }
        *ret = n;
        return CTL_OK;
}

static int parse_dtype(const char *text, const char **ret)
{
        if (strcmp(text, "fp32") != 0 && strcmp(text, "serve") != 0) {
                ctl_error("--dtype is fp32 or serve, not '%s'", text);
                return CTL_USAGE;
        }
        *ret = text;
        return CTL_OK;
}

static int unknown_command(const char *word)
{
        const char *names[N_COMMANDS], *meant;

        for (size_t i = 0; i < N_COMMANDS; i++)
                names[i] = commands[i]->name;
        meant = nearest(word, names, N_COMMANDS);
        if (meant)
                ctl_error("no command '%s'; did you mean '%s'?", word, meant);
        else
                ctl_error("no command '%s'; see zeroctl --help", word);
        return CTL_USAGE;
}

static int find_command(const char *word, const struct command **ret_command)
{
        for (size_t i = 0; i < N_COMMANDS; i++) {
                if (strcmp(commands[i]->name, word) == 0) {
                        *ret_command = commands[i];
                        return CTL_OK;
                }
        }
        return unknown_command(word);
}

/* Words of "JOB [DIR]", those in brackets left out. */
static int count_words(const char *argument, bool needed)
{
        int n = 0;

        for (const char *p = argument; p && *p; p += strcspn(p, " "), p += strspn(p, " "))
                n += !needed || *p != '[';
        return n;
}

static int check_option(const struct command *command, bool given, const char *option)
{
        if (!given || (command->options && strstr(command->options, option)))
                return CTL_OK;
        ctl_error("%s:%s is not for this command; see zeroctl --help", command->name, option);
        return CTL_USAGE;
}

static int check_options(const struct ctl *ctl, const struct command *command)
{
        int r = check_option(command, ctl->once, " --once ");

        if (r == CTL_OK)
                r = check_option(command, ctl->keep >= 0, " --keep ");
        if (r == CTL_OK)
                r = check_option(command, ctl->every >= 0, " --every ");
        if (r == CTL_OK && command == &command_takeover && !ctl->dead) {
                ctl_error("takeover: name the node that you know to be dead: --node-is-dead NODE");
                return CTL_USAGE;
        }
        if (r == CTL_OK)
                r = check_option(command, ctl->dead != NULL, " --node-is-dead ");
        if (r == CTL_OK)
                r = check_option(command, ctl->no_wait, " --no-wait ");
        return r == CTL_OK ? check_option(command, ctl->dtype != NULL, " --dtype ") : r;
}

static int parse_command(struct ctl *ctl, struct arguments *a, char **words, int n)
{
        int r, most;

        if (n == 0) {
                ctl_error("which command? see zeroctl --help");
                return CTL_USAGE;
        }
        r = find_command(words[0], &a->command);
        if (r != CTL_OK)
                return r;
        most = count_words(a->command->argument, false);
        if (n - 1 > most) {
                ctl_error("%s: unexpected argument '%s'", words[0], words[most + 1]);
                return CTL_USAGE;
        }
        if (n - 1 < count_words(a->command->argument, true)) {
                ctl_error("%s: which %s?", words[0], a->command->argument);
                return CTL_USAGE;
        }
        ctl->argument = n > 1 ? words[1] : NULL;
        ctl->file = n > 2 ? words[2] : NULL;
        return check_options(ctl, a->command);
}

enum {
        OPTION_ONCE = 256,
        OPTION_VERSION,
        OPTION_KEEP,
        OPTION_EVERY,
        OPTION_DTYPE,
        OPTION_DEAD,
        OPTION_NO_WAIT
};

static const struct option long_options[] = {
        { "socket", required_argument, NULL, 's' },
        { "json", no_argument, NULL, 'j' },
        { "timeout", required_argument, NULL, 't' },
        { "once", no_argument, NULL, OPTION_ONCE },
        { "keep", required_argument, NULL, OPTION_KEEP },
        { "every", required_argument, NULL, OPTION_EVERY },
        { "no-wait", no_argument, NULL, OPTION_NO_WAIT },
        { "dtype", required_argument, NULL, OPTION_DTYPE },
        { "node-is-dead", required_argument, NULL, OPTION_DEAD },
        { "help", no_argument, NULL, 'h' },
        { "version", no_argument, NULL, OPTION_VERSION },
        { NULL, 0, NULL, 0 },
};

static int parse(struct ctl *ctl, struct arguments *a, int argc, char **argv)
{
        int option, r = CTL_OK;

        while (r == CTL_OK && (option = getopt_long(argc, argv, "s:jt:h", long_options, NULL)) != -1) {
                switch (option) {
                case 's':
                        a->socket = optarg;
                        break;
                case 'j':
                        ctl->json = true;
                        break;
                case 't':
                        r = parse_timeout(optarg, &a->timeout_ms);
                        break;
                case OPTION_ONCE:
                        ctl->once = true;
                        break;
                case OPTION_KEEP:
                        r = parse_count("--keep", optarg, &ctl->keep);
                        break;
                case OPTION_EVERY:
                        r = parse_count("--every", optarg, &ctl->every);
                        break;
                case OPTION_DEAD:
                        ctl->dead = optarg;
                        break;
                case OPTION_NO_WAIT:
                        ctl->no_wait = true;
                        break;
                case OPTION_DTYPE:
                        r = parse_dtype(optarg, &ctl->dtype);
                        break;
                case 'h':
                        print_help(stdout);
                        return CTL_OK;
                case OPTION_VERSION:
                        puts("zeroctl " ZEROD_VERSION);
                        return CTL_OK;
                default:
                        return CTL_USAGE; /* getopt_long() has said why */
                }
        }
        return r == CTL_OK ? parse_command(ctl, a, argv + optind, argc - optind) : r;
}

static int execute(struct ctl *ctl, const struct arguments *a)
{
        int r;

        ctl->options = (struct zero_options){
                .socket = a->socket,
                .job = a->command->of_job ? ctl->argument : NULL,
                .rank = ZERO_OBSERVER,
                .timeout_ms = a->timeout_ms,
        };
        r = zero_connect(&ctl->options, &ctl->client);
        if (r) {
                ctl_error("%s", zero_error(NULL));
                return CTL_NO_CONNECTION;
        }
        r = a->command->run ? a->command->run(ctl) : ctl_run(ctl, a->command);
        zero_close(ctl->client);
        return r;
}

int main(int argc, char **argv)
{
        struct ctl ctl = { .colour = isatty(STDOUT_FILENO) && !getenv("NO_COLOR"),
                           .keep = -1,
                           .every = -1 };
        struct arguments a = { 0 };
        int r = parse(&ctl, &a, argc, argv);

        return r != CTL_OK || !a.command ? r : execute(&ctl, &a);
}
