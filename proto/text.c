/*
 * UTF-8: validity, and cutting without breaking a character (RFC 3629).
 *
 * Invariant: a text that text_printable() accepts can be cut anywhere and trimmed, and is accepted
 * again.
 */
#include "proto/text.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Bytes of the character that begins with this byte; 0: no character does. */
static size_t sequence_length(uint8_t first)
{
        if (first < 0x80)
                return 1;
        if (first >= 0xc2 && first < 0xe0)
                return 2;
        if (first >= 0xe0 && first < 0xf0)
                return 3;
        if (first >= 0xf0 && first < 0xf5)
                return 4;
        return 0;
}

/* The character at p, with its bytes in *ret_length; -1 if it is malformed. */
static int32_t decode(const uint8_t *p, size_t *ret_length)
{
        static const uint8_t first_bits[] = { 0, 0x7f, 0x1f, 0x0f, 0x07 };
        static const int32_t smallest[] = { 0, 0, 0x80, 0x800, 0x10000 };
        size_t length = sequence_length(p[0]);
        if (length == 0)
                return -1;

        int32_t c = p[0] & first_bits[length];
        for (size_t i = 1; i < length; i++) {
                if ((p[i] & 0xc0) != 0x80) /* the end of the string included */
                        return -1;
                c = c << 6 | (p[i] & 0x3f);
        }
        if (c < smallest[length] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
                return -1;
        *ret_length = length;
        return c;
}

/* Malformed, a control character, or one that breaks a line or turns the order of others around, so
 * that a name looks like another text. */
static bool unprintable(int32_t c)
{
        return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x61c || c == 0x200e || c == 0x200f ||
               (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

bool text_printable(const char *s)
{
        const uint8_t *p = (const uint8_t *)s;
        size_t length = 1;

        for (; *p; p += length)
                if (unprintable(decode(p, &length)))
                        return false;
        return true;
}

void text_scrub(char *s)
{
        uint8_t *p = (uint8_t *)s;

        for (size_t length = 1; *p; p += length, length = 1)
                if (unprintable(decode(p, &length)))
                        memset(p, '?', length);
}

void text_trim(char *s)
{
        size_t n = strlen(s), first = n;

        while (first > 0 && n - first < 3 && ((uint8_t)s[first - 1] & 0xc0) == 0x80)
                first--;
        if (first == 0 || (uint8_t)s[first - 1] < 0x80)
                return;
        if (n - first + 1 < sequence_length((uint8_t)s[first - 1]))
                s[first - 1] = '\0';
}

struct text_quote text_quote(const char *name)
{
        char cut[TEXT_QUOTE - sizeof("'...'") + 1];
        struct text_quote q;
        int n = snprintf(cut, sizeof(cut), "%s", name);

        text_trim(cut);
        snprintf(q.text, sizeof(q.text), "'%s%s'", cut, n < (int)sizeof(cut) ? "" : "...");
        return q;
}
