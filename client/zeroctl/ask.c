/* Queries of the daemon, and the fields of its answers. */
#include "ctl.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "proto/text.h"

enum { PATIENCE_S = 60 };

void ctl_error(const char *format, ...)
{
        va_list arguments;
        char text[1024];

        va_start(arguments, format);
        vsnprintf(text, sizeof(text), format, arguments);
        va_end(arguments);
        text_scrub(text);
        fprintf(stderr, "zeroctl: %s\n", text);
}

/* Other users choose names: control characters must not reach the terminal. */
static void scrub_text(json_t *value)
{
        char *text = strdup(json_string_value(value));

        if (!text) {
                ctl_error("out of memory");
                exit(CTL_FAILED);
        }
        text_scrub(text);
        json_string_set(value, text);
        free(text);
}

static void scrub(json_t *value)
{
        const char *key;
        json_t *item;
        size_t i;

        if (json_is_string(value))
                scrub_text(value);
        json_array_foreach(value, i, item) scrub(item);
        json_object_foreach(value, key, item) scrub(item);
}

int ctl_ask(struct ctl *ctl, const char *what, json_t **ret_answer)
{
        return ctl_ask_about(ctl, what, ctl->argument, ret_answer);
}

int ctl_query(struct ctl *ctl, const char *what, const char *argument, json_t **ret_answer)
{
        char *text = NULL;
        json_t *answer;
        int r = ctl->client ? zero_query(ctl->client, what, argument, &text) : ZERO_ECLOSED;

        if (r)
                return r;
        answer = json_loads(text, 0, NULL);
        free(text);
        if (!json_is_object(answer)) {
                json_decref(answer);
                return ZERO_EPROTO;
        }
        if (!ctl->json)
                scrub(answer);
        *ret_answer = answer;
        return ZERO_OK;
}

int ctl_ask_about(struct ctl *ctl, const char *what, const char *argument, json_t **ret_answer)
{
        int r = ctl_query(ctl, what, argument, ret_answer);

        if (r == ZERO_OK)
                return CTL_OK;
        if (r == ZERO_EPROTO)
                ctl_error("%s: zerod's answer is not a JSON object", ctl->command);
        else
                ctl_error("%s: %s (%s)", ctl->command, zero_error(ctl->client),
                          zero_status_name(r));
        return CTL_FAILED;
}

int ctl_connect_again(struct ctl *ctl)
{
        struct zero_client *client = NULL;
        int r = zero_connect(&ctl->options, &client);

        if (r)
                return r;
        zero_close(ctl->client);
        ctl->client = client;
        return ZERO_OK;
}

double ctl_patience(const struct ctl *ctl)
{
        return ctl->options.timeout_ms ? ctl->options.timeout_ms / 1000.0 : PATIENCE_S;
}

int ctl_show(struct ctl *ctl, json_t *answer,
             void (*show)(const struct ctl *ctl, FILE *out, const json_t *answer))
{
        if (ctl->json) {
                json_dumpf(answer, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
                putchar('\n');
        } else {
                show(ctl, stdout, answer);
        }
        json_decref(answer);
        if (fflush(stdout) == 0 && !ferror(stdout))
                return CTL_OK;
        ctl_error("cannot write to standard output");
        return CTL_FAILED;
}

int ctl_attach(struct ctl *ctl)
{
        int r = zero_attach(ctl->client, NULL, NULL);

        if (r == ZERO_OK)
                return CTL_OK;
        ctl_error("%s (%s)", zero_error(ctl->client), zero_status_name(r));
        return CTL_FAILED;
}

const char *field_text(const json_t *object, const char *key)
{
        const char *text = json_string_value(json_object_get(object, key));

        return text ? text : "";
}

double field_number(const json_t *object, const char *key)
{
        return json_number_value(json_object_get(object, key));
}

bool field_true(const json_t *object, const char *key)
{
        return json_is_true(json_object_get(object, key));
}

json_t *find_named(const json_t *list, const char *key, const char *text)
{
        json_t *item;
        size_t i;

        json_array_foreach(list, i, item)
        {
                if (strcmp(field_text(item, key), text) == 0)
                        return item;
        }
        return NULL;
}
