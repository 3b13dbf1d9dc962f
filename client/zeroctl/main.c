/* zeroctl: finds the subcommand, connects, runs it. */
#include "ctl.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nearest.h"

static const struct command *const commands[] = {
        &command_status, &command_jobs,     &command_shards, &command_top,
        &command_ping,   &command_checksum, &command_config, &command_drop,
};

enum { N_COMMANDS = sizeof(commands) / sizeof(commands[0]), TIMEOUT_MAX_S = 86400 };

static const char options_help[] =
        "\n"
        "Options:\n"
        "  -s, --socket PATH      zerod's socket (default: $ZEROD_SOCKET, else\n"
        "                         $XDG_RUNTIME_DIR/zerod.sock, else /run/zerod/zerod.sock)\n"
        "  -j, --json             print zerod's answer as JSON\n"
        "  -t, --timeout SECONDS  how long to wait for zerod (default: 60)\n"
        "      --once             top: print one picture and end\n"
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
        fputs("Usage: zeroctl [OPTION]... COMMAND [JOB]\n\n"
              "Shows and manages the jobs of zerod, the parameter-partition service.\n\n"
              "Commands:\n",
              out);
        for (size_t i = 0; i < N_COMMANDS; i++)
                fprintf(out, "  %-9s %-6s  %s\n", commands[i]->name,
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

static int parse_command(struct ctl *ctl, struct arguments *a, char **words, int n)
{
        const char *argument;
        int r;

        if (n == 0) {
                ctl_error("which command? see zeroctl --help");
                return CTL_USAGE;
        }
        r = find_command(words[0], &a->command);
        if (r != CTL_OK)
                return r;
        argument = a->command->argument;
        if (n > (argument ? 2 : 1)) {
                ctl_error("%s: unexpected argument '%s'", words[0], words[argument ? 2 : 1]);
                return CTL_USAGE;
        }
        if (argument && argument[0] != '[' && n < 2) {
                ctl_error("%s: which %s?", words[0], argument);
                return CTL_USAGE;
        }
        if (ctl->once && a->command != &command_top) {
                ctl_error("%s: --once belongs to top", words[0]);
                return CTL_USAGE;
        }
        ctl->argument = n > 1 ? words[1] : NULL;
        return CTL_OK;
}

static int parse(struct ctl *ctl, struct arguments *a, int argc, char **argv)
{
        enum { OPTION_ONCE = 256, OPTION_VERSION };
        static const struct option options[] = {
                { "socket", required_argument, NULL, 's' },
                { "json", no_argument, NULL, 'j' },
                { "timeout", required_argument, NULL, 't' },
                { "once", no_argument, NULL, OPTION_ONCE },
                { "help", no_argument, NULL, 'h' },
                { "version", no_argument, NULL, OPTION_VERSION },
                { NULL, 0, NULL, 0 },
        };
        int option, r = CTL_OK;

        while (r == CTL_OK && (option = getopt_long(argc, argv, "s:jt:h", options, NULL)) != -1) {
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
        struct zero_options options = {
                .socket = a->socket,
                .rank = ZERO_OBSERVER,
                .timeout_ms = a->timeout_ms,
        };
        int r = zero_connect(&options, &ctl->client);

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
        struct ctl ctl = { .colour = isatty(STDOUT_FILENO) && !getenv("NO_COLOR") };
        struct arguments a = { 0 };
        int r = parse(&ctl, &a, argc, argv);

        return r != CTL_OK || !a.command ? r : execute(&ctl, &a);
}
