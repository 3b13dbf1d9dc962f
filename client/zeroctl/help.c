/* The table of subcommands, and --help. */
#include "commands.h"

#include <string.h>

#define X(name) &command_##name,
const struct command *const commands[N_COMMANDS] = { ZEROCTL_COMMANDS };
#undef X

enum { WIDTH = 80, OPTION_COLUMN = 25 };

static const char general_options[] =
        "  -s, --socket PATH      zerod's socket (default: $ZEROD_SOCKET, else\n"
        "                         $XDG_RUNTIME_DIR/zerod.sock, else\n"
        "                         /run/zerod/zerod.sock)\n"
        "  -j, --json             print zerod's answer as JSON\n"
        "  -t, --timeout SECONDS  how long to wait for zerod (default: 60)\n"
        "  -h, --help             this text, or with a command the command's\n"
        "      --version          zeroctl's version\n";

/* Characters of a word that is shown: all but the marks of struct command. */
static int print_word(FILE *out, const char *word, size_t n)
{
        int shown = 0;

        for (size_t i = 0; i < n; i++) {
                if (strchr("*<>", word[i]))
                        continue;
                if (out)
                        fputc(word[i], out);
                shown++;
        }
        return shown;
}

/* Breaks lines between words; the first line begins at `column`. */
static void print_text(FILE *out, const char *text, int indent, int column)
{
        while (*text) {
                size_t n = strcspn(text, " \n");
                int width = print_word(NULL, text, n);

                if (column > indent && column + 1 + width > WIDTH) {
                        fprintf(out, "\n%*s", indent, "");
                        column = indent;
                } else if (column > indent) {
                        fputc(' ', out);
                        column++;
                }
                column += print_word(out, text, n);
                text += n;
                if (*text == '\n') {
                        fprintf(out, "\n\n%*s", indent, "");
                        column = indent;
                }
                text += *text != '\0';
        }
        fputc('\n', out);
}

const struct command_option *command_option(const struct command *command, size_t i)
{
        const struct command_option *lists[] = { command->options, command->more_options };

        for (size_t k = 0; k < 2; k++)
                for (const struct command_option *o = lists[k]; o && o->name; o++)
                        if (i-- == 0)
                                return o;
        return NULL;
}

void help_all(FILE *out)
{
        fputs("Usage: zeroctl [OPTION]... COMMAND [ARGUMENT]...\n\n"
              "Shows and manages the jobs and the nodes of zerod, the parameter-partition "
              "service.\n\n"
              "Commands:\n",
              out);
        for (size_t i = 0; i < N_COMMANDS; i++)
                fprintf(out, "  %-11s %-9s  %s\n", commands[i]->name,
                        commands[i]->arguments ? commands[i]->arguments : "", commands[i]->summary);
        fprintf(out,
                "\nzeroctl COMMAND --help describes a command and its options.\n\nOptions:\n%s\n"
                "Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no connection to "
                "zerod.\n",
                general_options);
}

static void help_option(FILE *out, const struct command_option *o)
{
        int n = fprintf(out, "      --%s%s%s", o->name, o->argument ? " " : "",
                        o->argument ? o->argument : "");

        if (n + 2 > OPTION_COLUMN) {
                fputc('\n', out);
                n = 0;
        }
        fprintf(out, "%*s", OPTION_COLUMN - n, "");
        print_text(out, o->help, OPTION_COLUMN, OPTION_COLUMN);
}

void help_command(FILE *out, const struct command *command)
{
        fprintf(out, "Usage: zeroctl [OPTION]... %s%s%s\n\n", command->name,
                command->arguments ? " " : "", command->arguments ? command->arguments : "");
        print_text(out, command->description, 0, 0);
        fputs("\nOptions:\n", out);
        for (size_t i = 0; command_option(command, i); i++)
                help_option(out, command_option(command, i));
        fputs(general_options, out);
}
