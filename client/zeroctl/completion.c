/*
 * Run by the build: prints the completion of zeroctl for a shell, from the table of subcommands.
 *
 *   zeroctl-completion bash | zsh | fish
 *
 * A shell offers subcommands, their options, the jobs of the daemon where an argument is a JOB, and
 * files elsewhere.  Names of jobs hold nothing that a shell would expand.
 */
#include "commands.h"

#include <string.h>

#define JOBS "zeroctl --timeout 1 jobs 2>/dev/null | sed 1d | cut -d' ' -f1"

static const struct command_option general[] = {
        { .name = "socket", .argument = "PATH", .help = "zerod's socket" },
        { .name = "json", .help = "print zerod's answer as JSON" },
        { .name = "timeout", .argument = "SECONDS", .help = "how long to wait for zerod" },
        { .name = "help", .help = "describe the command" },
        { .name = "version", .help = "zeroctl's version" },
        { 0 },
};

/* Those of the command, if there is one, then the general ones. */
static const struct command_option *option_at(const struct command *command, size_t i)
{
        for (size_t k = 0; command && command_option(command, k); k++, i--)
                if (i == 0)
                        return command_option(command, k);
        return &general[i];
}

static bool takes_job(const struct command *command)
{
        return command->arguments && strstr(command->arguments, "JOB");
}

/* The beginning of a text in single quotes, as far as one line needs it, without what quotes or
 * marks. */
static void print_summary(const char *text)
{
        for (size_t n = strcspn(text, ".;:(\n"); n > 0; n--, text++)
                if (!strchr("'*<>[]\\", *text))
                        putchar(*text);
}

static void print_bash_words(const struct command *command)
{
        const struct command_option *o;

        for (size_t i = 0; (o = option_at(command, i))->name; i++)
                printf("%s--%s", i ? " " : "", o->name);
}

static void print_bash(void)
{
        const struct command_option *o;

        puts("# zeroctl(1), from the table of its subcommands\n"
             "_zeroctl()\n{\n"
             "        local now=${COMP_WORDS[COMP_CWORD]} words job=false word\n"
             "        COMPREPLY=()\n"
             "        case ${COMP_WORDS[COMP_CWORD-1]} in");
        for (size_t i = 0; (o = option_at(NULL, i))->name; i++)
                if (o->argument)
                        printf("        --%s) return ;;\n", o->name);
        fputs("        esac\n        words='", stdout);
        for (size_t c = 0; c < N_COMMANDS; c++)
                printf("%s ", commands[c]->name);
        print_bash_words(NULL);
        puts("'\n        for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
             "                case $word in");
        for (size_t c = 0; c < N_COMMANDS; c++) {
                printf("                %s) job=%s words='", commands[c]->name,
                       takes_job(commands[c]) ? "true" : "false");
                print_bash_words(commands[c]);
                puts("' ;;");
        }
        puts("                *) continue ;;\n"
             "                esac\n"
             "                [[ $now == -* ]] || words=\n"
             "                ! $job || [[ $now == -* || $word != \"${COMP_WORDS[COMP_CWORD-1]}\" "
             "]] ||\n"
             "                        words=$(" JOBS ")\n"
             "                break\n"
             "        done\n"
             "        mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$now\")\n"
             "}\n"
             "complete -o default -F _zeroctl zeroctl");
}

static void print_zsh_options(const struct command *command)
{
        const struct command_option *o;

        for (size_t i = 0; (o = option_at(command, i))->name; i++) {
                printf(" \\\n                '--%s[", o->name);
                print_summary(o->help);
                printf(o->argument ? "]:%s:_files'" : "]'", o->argument);
        }
}

static void print_zsh(void)
{
        puts("#compdef zeroctl\n"
             "local context state line\n"
             "typeset -A opt_args\n"
             "local -a names jobs\n"
             "names=(");
        for (size_t c = 0; c < N_COMMANDS; c++) {
                printf("        '%s:", commands[c]->name);
                print_summary(commands[c]->summary);
                puts("'");
        }
        fputs(")\n_arguments -C", stdout);
        print_zsh_options(NULL);
        puts(" \\\n                '1: :->command' '*:: :->argument' && return\n"
             "if [[ $state == command ]]; then\n"
             "        _describe command names\n"
             "        return\n"
             "fi\n"
             "case $words[1] in");
        for (size_t c = 0; c < N_COMMANDS; c++) {
                printf("%s)\n", commands[c]->name);
                if (takes_job(commands[c]))
                        puts("        jobs=(${(f)\"$(" JOBS ")\"})");
                fputs("        _arguments", stdout);
                print_zsh_options(commands[c]);
                puts(takes_job(commands[c])
                             ? " \\\n                '1:job:($jobs)' '*:file:_files'\n        ;;"
                             : " \\\n                '*:file:_files'\n        ;;");
        }
        puts("esac");
}

static void print_fish_options(const struct command *command)
{
        const struct command_option *o;

        for (size_t i = 0; (o = command ? command_option(command, i) : &general[i]) && o->name;
             i++) {
                printf("complete -c zeroctl %s%s%s -l %s%s -d '",
                       command ? "-n '__fish_seen_subcommand_from " : "",
                       command ? command->name : "", command ? "'" : "", o->name,
                       o->argument ? " -r" : "");
                print_summary(o->help);
                puts("'");
        }
}

static void print_fish(void)
{
        puts("# zeroctl(1), from the table of its subcommands");
        print_fish_options(NULL);
        for (size_t c = 0; c < N_COMMANDS; c++) {
                printf("complete -c zeroctl -f -n __fish_use_subcommand -a %s -d '",
                       commands[c]->name);
                print_summary(commands[c]->summary);
                puts("'");
                if (takes_job(commands[c]))
                        printf("complete -c zeroctl -n '__fish_seen_subcommand_from %s' -a \"(" JOBS
                               ")\" -d job\n",
                               commands[c]->name);
                print_fish_options(commands[c]);
        }
}

int main(int argc, char **argv)
{
        static const struct {
                const char *name;
                void (*print)(void);
        } shells[] = { { "bash", print_bash }, { "zsh", print_zsh }, { "fish", print_fish } };

        for (size_t i = 0; i < 3; i++) {
                if (argc == 2 && strcmp(argv[1], shells[i].name) == 0) {
                        shells[i].print();
                        return fflush(stdout) == 0 ? 0 : 1;
                }
        }
        fputs("usage: zeroctl-completion bash | zsh | fish\n", stderr);
        return 2;
}
