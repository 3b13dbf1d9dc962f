/* zeroctl: finds the subcommand, reads its options, connects, runs it. */
#include "commands.h"

#include <assert.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nearest.h"
#include "progress.h"

enum { TIMEOUT_MAX_S = 86400, GIVEN_MAX = 32, OPTIONS_MAX = 64, ANEW_MS = 500 };

/* An option of some subcommand, given before or after the subcommand's name. */
struct given {
        const char *word, *value; /* word: as it was typed, without "--", up to "=" */
        size_t n;                 /* bytes of the word */
};

struct arguments {
        const char *socket;
        uint32_t timeout_ms;
        bool help;
        struct given given[GIVEN_MAX];
        unsigned n_given;
        const struct command *command; /* NULL: help or version was printed */
};

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
                ctl_error("--%s is 0 to %d, not '%s'", option, COUNT_MAX, text);
                return CTL_USAGE;
        }
        *ret = n;
        return CTL_OK;
}

/* ---- the subcommand ------------------------------------------------------ */

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

/* Counts the words of "JOB [DIR]"; needed: without those in brackets. */
static int count_words(const char *arguments, bool needed)
{
        int n = 0;

        for (const char *p = arguments; p && *p; p += strcspn(p, " "), p += strspn(p, " "))
                n += !needed || *p != '[';
        return n;
}

static int take_words(struct ctl *ctl, const struct command *command, char **words, int n)
{
        int most = count_words(command->arguments, false);

        if (n > most && !strstr(command->arguments ? command->arguments : "", "...")) {
                ctl_error("%s: unexpected argument '%s'", command->name, words[most]);
                return CTL_USAGE;
        }
        if (n < count_words(command->arguments, true)) {
                const char *missing = command->arguments;

                for (int i = 0; i < n; i++)
                        missing += strcspn(missing, " "), missing += strspn(missing, " ");
                ctl_error("%s: %s is missing: zeroctl %s %s", command->name, missing, command->name,
                          command->arguments);
                return CTL_USAGE;
        }
        ctl->argument = n > 0 ? words[0] : NULL;
        ctl->file = n > 1 ? words[1] : NULL;
        ctl->more = words + (n > 1 ? 2 : n);
        return CTL_OK;
}

/* getopt_long() takes the beginning of a word for the first option of any command that begins so.
 */
static const struct command_option *find_option(const struct command *command,
                                                const struct given *given)
{
        const struct command_option *o, *only = NULL;
        unsigned alike = 0;

        for (size_t i = 0; (o = command_option(command, i)); i++) {
                if (strncmp(o->name, given->word, given->n) != 0)
                        continue;
                if (!o->name[given->n])
                        return o;
                only = o;
                alike++;
        }
        return alike == 1 ? only : NULL;
}

static int take_option(const struct command *command, const struct given *given)
{
        const struct command_option *o = find_option(command, given);

        if (!o) {
                ctl_error("%s: --%.*s is not an option of this command; see zeroctl %s --help",
                          command->name, (int)given->n, given->word, command->name);
                return CTL_USAGE;
        }
        if (o->count)
                return parse_count(o->name, given->value, o->count);
        if (o->text)
                *o->text = given->value;
        else
                *o->flag = true;
        return CTL_OK;
}

static int parse_command(struct ctl *ctl, struct arguments *a, char **words, int n)
{
        const struct command *command;
        int r;

        if (n == 0 && a->help) {
                help_all(stdout);
                return CTL_OK;
        }
        if (n == 0) {
                ctl_error("which command? see zeroctl --help");
                return CTL_USAGE;
        }
        r = find_command(words[0], &command);
        if (r == CTL_OK && a->help) {
                help_command(stdout, command);
                return CTL_OK;
        }
        if (r == CTL_OK)
                r = take_words(ctl, command, words + 1, n - 1);
        for (unsigned i = 0; r == CTL_OK && i < a->n_given; i++)
                r = take_option(command, &a->given[i]);
        if (r == CTL_OK && command->check)
                r = command->check(ctl);
        if (r == CTL_OK)
                a->command = command;
        return r;
}

/* ---- the command line ---------------------------------------------------- */

enum { OPTION_VERSION = 256, OPTION_OF_COMMAND };

static const struct option general_options[] = {
        { "socket", required_argument, NULL, 's' },       { "json", no_argument, NULL, 'j' },
        { "timeout", required_argument, NULL, 't' },      { "help", no_argument, NULL, 'h' },
        { "version", no_argument, NULL, OPTION_VERSION },
};

/* Lists the options of all subcommands, because an option may precede the subcommand's name. */
static void list_options(struct option list[static OPTIONS_MAX + 1])
{
        size_t n = sizeof(general_options) / sizeof(general_options[0]);

        memset(list, 0, (OPTIONS_MAX + 1) * sizeof(*list));
        memcpy(list, general_options, sizeof(general_options));
        for (size_t i = 0; i < N_COMMANDS; i++)
                for (size_t j = 0; command_option(commands[i], j); j++) {
                        const struct command_option *o = command_option(commands[i], j);
                        size_t k = 0;

                        while (k < n && strcmp(list[k].name, o->name) != 0)
                                k++;
                        if (k < n)
                                continue;
                        assert(n < OPTIONS_MAX);
                        list[n++] = (struct option){
                                .name = o->name,
                                .has_arg = o->flag ? no_argument : required_argument,
                                .val = OPTION_OF_COMMAND,
                        };
                }
}

static int give(struct arguments *a, const char *word)
{
        if (a->n_given == GIVEN_MAX) {
                ctl_error("more than %d options", GIVEN_MAX);
                return CTL_USAGE;
        }
        a->given[a->n_given++] = (struct given){ word + 2, optarg, strcspn(word + 2, "=") };
        return CTL_OK;
}

static int parse(struct ctl *ctl, struct arguments *a, int argc, char **argv)
{
        struct option list[OPTIONS_MAX + 1];
        int option, r = CTL_OK;

        list_options(list);
        while (r == CTL_OK && (option = getopt_long(argc, argv, "s:jt:h", list, NULL)) != -1) {
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
                case 'h':
                        a->help = true;
                        break;
                case OPTION_VERSION:
                        puts("zeroctl " ZEROD_VERSION);
                        return CTL_OK;
                case OPTION_OF_COMMAND:
                        r = give(a, argv[optind - 1 - (optarg == argv[optind - 1])]);
                        break;
                default:
                        return CTL_USAGE; /* getopt_long() has said why */
                }
        }
        return r == CTL_OK ? parse_command(ctl, a, argv + optind, argc - optind) : r;
}

static int ask_and_show(struct ctl *ctl, const struct command *command)
{
        json_t *answer;
        int r = ctl_ask(ctl, command->name, &answer);

        return r == CTL_OK ? ctl_show(ctl, answer, command->show) : r;
}

static int execute(struct ctl *ctl, const struct arguments *a)
{
        bool of_job = a->command->of_job &&
                      !(a->command->or_path && ctl->argument && strchr(ctl->argument, '/'));
        int r;

        ctl->command = a->command->name;
        ctl->options = (struct zero_options){
                .socket = a->socket,
                .job = of_job ? ctl->argument : NULL,
                .rank = ZERO_OBSERVER,
                .timeout_ms = a->timeout_ms,
        };
        if (a->command->connects || (a->command->alone && !ctl->argument)) {
                r = a->command->run(ctl); /* which may connect by itself */
                zero_close(ctl->client);
                return r;
        }
        r = zero_connect(&ctl->options, &ctl->client);
        if (r == ZERO_ECLOSED) { /* the daemon may be restarting with other owners */
                progress_nap(ANEW_MS);
                r = zero_connect(&ctl->options, &ctl->client);
        }
        if (r) {
                ctl_error("%s", zero_error(NULL));
                return CTL_NO_CONNECTION;
        }
        r = a->command->run ? a->command->run(ctl) : ask_and_show(ctl, a->command);
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
