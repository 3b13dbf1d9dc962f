/*
 * Run by the build: prints zeroctl(1): its title, then the template, in which the line @COMMANDS@
 * becomes the description of all subcommands.
 *
 *   zeroctl-man TEMPLATE
 */
#include "commands.h"

#include <string.h>

/* Minus signs that can be copied, *bold*, <PLACEHOLDER> in italics, paragraphs. */
static void print_text(const char *text)
{
        bool bold = false;

        for (; *text; text++) {
                if (*text == '*')
                        fputs((bold = !bold) ? "\\fB" : "\\fR", stdout);
                else if (*text == '<')
                        fputs("\\fI", stdout);
                else if (*text == '>')
                        fputs("\\fR", stdout);
                else if (*text == '\n')
                        fputs("\n.IP\n", stdout);
                else if (strchr("-\\", *text))
                        fputs(*text == '-' ? "\\-" : "\\e", stdout);
                else
                        putchar(*text);
        }
        putchar('\n');
}

static void print_tag(const char *dashes, const char *name, const char *argument)
{
        fputs(".TP\n\\fB", stdout);
        for (fputs(dashes, stdout); *name; name++)
                fputs(*name == '-' ? "\\-" : (char[]){ *name, '\0' }, stdout);
        printf("\\fR%s\\fI%s\\fR\n", argument ? " " : "", argument ? argument : "");
}

static void print_commands(void)
{
        for (size_t i = 0; i < N_COMMANDS; i++) {
                const struct command_option *o = command_option(commands[i], 0);

                print_tag("", commands[i]->name, commands[i]->arguments);
                print_text(commands[i]->description);
                if (!o)
                        continue;
                fputs(".RS\n", stdout);
                for (size_t k = 0; (o = command_option(commands[i], k)); k++) {
                        print_tag("\\-\\-", o->name, o->argument);
                        print_text(o->help);
                }
                fputs(".RE\n", stdout);
        }
}

int main(int argc, char **argv)
{
        char line[512];
        FILE *file;

        if (argc != 2) {
                fputs("usage: zeroctl-man TEMPLATE\n", stderr);
                return 2;
        }
        file = fopen(argv[1], "r");
        if (!file) {
                perror(argv[1]);
                return 1;
        }
        puts(".TH ZEROCTL 1 \"\" \"zerod " ZEROD_VERSION "\" \"zerod\"");
        while (fgets(line, sizeof(line), file))
                if (strcmp(line, "@COMMANDS@\n") == 0)
                        print_commands();
                else
                        fputs(line, stdout);
        fclose(file);
        return fflush(stdout) == 0 ? 0 : 1;
}
