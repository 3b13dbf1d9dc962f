/* Limits of the log; see log_limit.h. */
#include "daemon/floor/base/log_limit.h"

#include <stdio.h>

static bool key_over(const struct log_key *key, uint64_t now_ms)
{
        return now_ms - key->since_ms >= LOG_LIMIT_MS;
}

/* Says how many lines the log left out; false: none. */
static bool key_tell(struct log_key *key, char *ret_told)
{
        if (!key->message || !key->left_out)
                return false;
        snprintf(ret_told, LOG_LIMIT_TEXT + 100,
                 "%u more lines on behalf of user %u were left out, the last one: %s",
                 key->left_out, key->user, key->last);
        key->left_out = 0;
        return true;
}

/* The key of the message and user, or the key that has been in use the longest. */
static struct log_key *key_find(struct log_limit *limit, const char *message, uint32_t user)
{
        struct log_key *oldest = &limit->keys[0];

        for (size_t i = 0; i < LOG_LIMIT_KEYS; i++) {
                struct log_key *key = &limit->keys[i];

                if (key->message == message && key->user == user)
                        return key;
                if (!key->message || (oldest->message && key->since_ms < oldest->since_ms))
                        oldest = key;
        }
        return oldest;
}

bool log_limit_pass(struct log_limit *limit, const char *message, uint32_t user, const char *text,
                    uint64_t now_ms, char ret_told[static LOG_LIMIT_TEXT + 100])
{
        struct log_key *key = key_find(limit, message, user);

        ret_told[0] = '\0';
        if (key->message != message || key->user != user || key_over(key, now_ms)) {
                key_tell(key, ret_told);
                *key = (struct log_key){ .message = message, .user = user, .since_ms = now_ms };
        }
        if (key->written < LOG_LIMIT_LINES) {
                key->written++;
                return true;
        }
        key->left_out++;
        snprintf(key->last, sizeof key->last, "%s", text);
        return false;
}

bool log_limit_over(struct log_limit *limit, uint64_t now_ms,
                    char ret_told[static LOG_LIMIT_TEXT + 100])
{
        for (size_t i = 0; i < LOG_LIMIT_KEYS; i++)
                if (limit->keys[i].left_out && key_over(&limit->keys[i], now_ms))
                        return key_tell(&limit->keys[i], ret_told);
        return false;
}
