/*
 * help.c - what `zerod --help` prints, from the option table.
 */
#include <stdio.h>
#include <string.h>

#include "daemon/floor/conf/source.h"

enum { WIDTH = 80 };

static const char indent[] = "      ";

void conf_print_words(FILE *out, const char *begin, const char *text, uint32_t *column)
{
        while (*text) {
                size_t n = strcspn(text, " ");

                if (*column > strlen(begin) && *column + 1 + n > WIDTH) {
                        fputc('\n', out);
                        *column = 0;
                }
                *column += (uint32_t)fprintf(out, "%s%.*s", *column ? " " : begin, (int)n, text);
                text += n + (text[n] == ' ');
        }
}

static const char *kind_name(const struct option *o)
{
        switch (o->kind) {
        case CONF_LIST:
                return "list";
        case CONF_PATH:
                return "path";
        case CONF_CHOICE:
                return "choice";
        case CONF_MODE:
                return "octal mode";
        case CONF_COUNT:
        case CONF_CHUNK:
                return "number";
        case CONF_SIZE:
                return "size";
        default:
                return "text";
        }
}

void option_facts(const struct option *o, char ret_text[static OPTION_FACTS])
{
        char range[4 * OPTION_NUMBER] = "";

        if (!option_is_string(o))
                option_range(o, range);
        snprintf(ret_text, OPTION_FACTS, "(%s%s%s%s%s%s)", kind_name(o), range[0] ? ", " : "",
                 range, option_is_live(o) ? "; may change while zerod runs" : "",
                 o->preset[0] ? "; default " : "", o->preset);
}

static void print_option(FILE *out, const struct option *o)
{
        char facts[OPTION_FACTS];
        uint32_t column = 0;

        fputs("  --", out);
        for (const char *p = o->name; *p; p++)
                fputc(*p == '_' ? '-' : *p, out);
        fprintf(out, "=%s\n", option_is_string(o) ? o->placeholder : "N");
        option_facts(o, facts);
        conf_print_words(out, indent, o->doc, &column);
        conf_print_words(out, indent, facts, &column);
        fputc('\n', out);
}

void conf_help(FILE *out)
{
        const char *section = "";

        fputs("usage: zerod [--config FILE] [--OPTION=VALUE ...]\n\n"
              "Holds the model states of training jobs, partitioned over the nodes of a\n"
              "cluster.  Each option can also be set in the file, in a section [zerod], as\n"
              "`key_file = ...`, and in the environment, as ZEROD_KEY_FILE.  The command line\n"
              "overrides the environment, which overrides the file.  Sizes take the suffixes\n"
              "K, M, G and T, powers of 1024.\n\n"
              "  --config=FILE\n"
              "      The file (default /etc/zerod/zerod.conf, if it exists).\n"
              "  --check\n"
              "      Reads everything, looks up the peers, reports each option with its source,\n"
              "      and exits.  A peer's name without an address is a warning.\n"
              "  --help, --version\n",
              out);
        for (uint32_t i = 0; i < N_OPTIONS; i++) {
                if (strcmp(section, options[i].section) != 0)
                        fprintf(out, "\n%s\n", section = options[i].section);
                print_option(out, &options[i]);
        }
}
