/*
 * man.c - run by the build: prints zerod(8), zerod.conf(5) or a sample zerod.conf from the table of
 * options.
 *
 *   conf-man zerod.8 | zerod.conf.5 | zerod.conf
 */
#include <stdio.h>
#include <string.h>

#include "daemon/floor/conf/source.h"

static const char daemon_head[] =
        ".TH ZEROD 8 \"\" \"zerod " ZEROD_VERSION "\" \"zerod\"\n"
        ".SH NAME\n"
        "zerod \\- hold the model states of training jobs, partitioned over nodes\n"
        ".SH SYNOPSIS\n"
        ".B zerod\n"
        ".RB [ \\-\\-config\n"
        ".IR FILE ]\n"
        ".RI [ \\-\\-OPTION = VALUE ]...\n"
        ".br\n"
        ".B zerod\n"
        ".BR \\-\\-check \" | \" \\-\\-help \" | \" \\-\\-version\n"
        ".SH DESCRIPTION\n"
        "One\n"
        ".B zerod\n"
        "runs on each node.\n"
        "Together they hold the optimizer states, gradients and parameters of training jobs as "
        "ZeRO\n"
        "partitions them, and run the optimizer on them.\n"
        "Trainers fetch groups of parameters and push gradients through a unix socket and shared\n"
        "memory; see\n"
        ".BR zero (3).\n"
        "Without any option it serves this node alone and opens no port but that of HTTP, on "
        "loopback.\n"
        ".SH OPTIONS\n"
        "A value follows an equals sign, or is the next argument.\n"
        ".TP\n"
        ".BI \\-\\-config= FILE\n"
        "The configuration file, which must exist (default\n"
        ".IR /etc/zerod/zerod.conf ,\n"
        "if it exists; environment: ZEROD_CONFIG).\n"
        ".TP\n"
        ".B \\-\\-check\n"
        "Read everything, key files included, look up the hosts of\n"
        ".B peers\n"
        "and look at\n"
        ".BR state_dir ,\n"
        "report each option with its source, and exit.\n"
        "It changes nothing.\n"
        ".TP\n"
        ".BR \\-\\-help \", \" \\-\\-version\n"
        "Print and exit.\n"
        ".PP\n"
        "The other options are those of\n"
        ".BR zerod.conf (5):\n";

static const char daemon_tail[] =
        ".SH ENVIRONMENT\n"
        "Each option is also a variable: ZEROD_KEY_FILE is\n"
        ".BR \\-\\-key\\-file .\n"
        "The command line overrides the environment, which overrides the file.\n"
        "Any other variable that begins with ZEROD_ is an error, except ZEROD_JOB and "
        "ZEROD_LIBRARY, which are\n"
        "for clients. In Kubernetes a\n"
        "service named zerod makes such variables: set enableServiceLinks: false.\n"
        ".SH SIGNALS\n"
        ".TP\n"
        ".BR SIGTERM \", \" SIGINT\n"
        "Stop. State files stay.\n"
        ".TP\n"
        ".B SIGHUP\n"
        "Read the configuration and the files of keys and token again.  Options that may change "
        "while zerod runs (see\n"
        ".BR zerod.conf (5))\n"
        "change; the log names the others.\n"
        ".SH HTTP\n"
        "Where the option\n"
        ".B http\n"
        "says, zerod answers GET and HEAD. HTTP changes nothing.\n"
        ".TP\n"
        ".B /\n"
        "A page for browsers: nodes and links, jobs, who is waited for, shards, memory, moves and "
        "checkpoints.\n"
        "It reads the answers below every two seconds and loads nothing from elsewhere.\n"
        ".TP\n"
        ".B /metrics\n"
        "For Prometheus: the classic format, or OpenMetrics.\n"
        ".TP\n"
        ".BR /healthz \", \" /readyz\n"
        "200 while the event loop runs; while clients may come. They need no token.\n"
        ".TP\n"
        ".BR /api/status \", \" /api/jobs \", \" /api/members \", \" /api/config\n"
        "What\n"
        ".BR zeroctl (1)\n"
        "prints with \\-\\-json.\n"
        ".B /api/jobs?job=NAME\n"
        "is that job alone.\n"
        ".TP\n"
        ".B /api/map\n"
        "Each job's shards: elements and versions by owner, in at most 64 bands of groups. "
        "Versions on other nodes\n"
        "are those that they told when the map before was read.\n"
        ".TP\n"
        ".B /weights/JOB\n"
        "A whole version of the job's parameters as a safetensors file, in the types that trainers "
        "are given: what\n"
        ".B zeroctl export \\-\\-dtype serve\n"
        "writes of that version. The header X-Zerod-Version has the version. Without a parameter "
        "it is the newest;\n"
        ".B ?version=N\n"
        "is version N, and\n"
        ".B ?newer_than=N\n"
        "the newest above N. Only who shows the token gets a file, of any user's job; without\n"
        ".B http_token_file\n"
        "the answer is 403. Other answers: 404, no such job; 410, the version is gone; 504, no "
        "such version in 30 s,\n"
        "and what the wait is for; 503, four downloads wait or go on, no memory, or zerod "
        "stops: ask again after Retry-After.\n"
        "A client that does not take 256 KiB in 20 s is cut off, and after a minute one that has "
        "taken less than 1 MiB a second in the mean. If the job is dropped or "
        "restored, or zerod stops, the body ends\n"
        "short of its Content-Length. A download holds a version as other readers do (option\n"
        ".BR follow_copies ).\n"
        ".SH EXIT STATUS\n"
        "0 after a stop by signal, otherwise 1.\n"
        ".SH FILES\n"
        ".TP\n"
        ".I /etc/zerod/zerod.conf\n"
        "Configuration.\n"
        ".TP\n"
        ".I /run/zerod/zerod.sock\n"
        "The socket for clients.\n"
        ".TP\n"
        ".I /dev/shm/zerod\n"
        "Model states; they outlive zerod. They end by\n"
        ".B zeroctl drop,\n"
        "or when all ranks have finished their job and did not keep it or a new job of the same "
        "user needs the place.\n"
        "Any user can fill /dev/shm. Space for a job is reserved when the job is made, and a "
        "restart\n"
        "needs no more, but a new job finds no space. The unit\n"
        ".B dev-shm-zerod.mount\n"
        "makes this directory a file system of its own: enable it while there are no jobs.\n"
        ".SH SEE ALSO\n"
        ".BR zerod.conf (5),\n"
        ".BR zeroctl (1),\n"
        ".BR zero (3)\n";

static const char file_head[] =
        ".TH ZEROD.CONF 5 \"\" \"zerod " ZEROD_VERSION "\" \"zerod\"\n"
        ".SH NAME\n"
        "zerod.conf \\- configuration of zerod\n"
        ".SH SYNOPSIS\n"
        ".I /etc/zerod/zerod.conf\n"
        ".SH DESCRIPTION\n"
        "One section,\n"
        ".BR [zerod] ,\n"
        "of lines\n"
        ".IR \"key = value\" .\n"
        "A comment begins with # or ; at the start of a line, or behind a blank after a value.\n"
        "Each key may be given once.\n"
        "A list may be one line of any length that the option admits, or continue in lines "
        "that\n"
        "begin with a blank:\n"
        ".PP\n"
        ".RS\n"
        ".nf\n"
        "[zerod]\n"
        "node = a\n"
        "peers =\n"
        "    a=10.0.0.1:7600\n"
        "    b=10.0.0.2:7600\n"
        "key_file = /etc/zerod/key\n"
        ".fi\n"
        ".RE\n"
        ".PP\n"
        "Sizes take the suffixes K, M, G and T, powers of 1024.\n"
        "Unknown sections and keys, and values out of range, are errors that say where and what "
        "is\n"
        "allowed.\n"
        ".SH OPTIONS\n";

static const char file_tail[] = ".SH SEE ALSO\n"
                                ".BR zerod (8)\n";

static const char sample_head[] =
        "# zerod.conf - see zerod.conf(5).  The values behind # are the defaults.\n"
        "\n"
        "[zerod]\n";

/* Prints minus signs that can be copied, and escapes what would begin a request. */
static void print_roff(const char *text)
{
        fputs("\\&", stdout);
        for (; *text; text++) {
                if (*text == '\\')
                        fputs("\\e", stdout);
                else if (*text == '-')
                        fputs("\\-", stdout);
                else
                        putchar(*text);
        }
}

static void print_name(const struct option *o, bool argument)
{
        if (!argument) {
                printf(".TP\n.B %s\n", o->name);
                return;
        }
        fputs(".TP\n.BI \\-\\-", stdout);
        for (const char *p = o->name; *p; p++)
                fputs(*p == '_' ? "\\-" : (char[]){ *p, '\0' }, stdout);
        printf("= \"%s\"\n", option_is_string(o) ? o->placeholder : "N");
}

static void print_options(bool arguments)
{
        const char *section = "";
        char facts[OPTION_FACTS];

        for (uint32_t i = 0; i < N_OPTIONS; i++) {
                const struct option *o = &options[i];

                if (strcmp(section, o->section) != 0)
                        printf(".SS %s\n", section = o->section);
                print_name(o, arguments);
                print_roff(o->doc);
                putchar('\n');
                option_facts(o, facts);
                print_roff(facts);
                if (!arguments && o->kind == CONF_CHOICE)
                        printf("\n.br\nOne of: %s.", o->placeholder);
                putchar('\n');
        }
}

static void print_sample(void)
{
        const char *section = "";
        uint32_t column;

        fputs(sample_head, stdout);
        for (uint32_t i = 0; i < N_OPTIONS; i++) {
                const struct option *o = &options[i];

                if (strcmp(section, o->section) != 0)
                        printf("\n# ---- %s\n", section = o->section);
                column = 0;
                putchar('\n');
                conf_print_words(stdout, "# ", o->doc, &column);
                printf("\n#%s =%s%s\n", o->name, o->preset[0] ? " " : "", o->preset);
        }
}

int main(int argc, char **argv)
{
        const char *page = argc == 2 ? argv[1] : "";

        if (strcmp(page, "zerod.8") == 0) {
                fputs(daemon_head, stdout);
                print_options(true);
                fputs(daemon_tail, stdout);
        } else if (strcmp(page, "zerod.conf.5") == 0) {
                fputs(file_head, stdout);
                print_options(false);
                fputs(file_tail, stdout);
        } else if (strcmp(page, "zerod.conf") == 0) {
                print_sample();
        } else {
                fputs("usage: conf-man zerod.8 | zerod.conf.5 | zerod.conf\n", stderr);
                return 2;
        }
        return fflush(stdout) == 0 ? 0 : 1;
}
