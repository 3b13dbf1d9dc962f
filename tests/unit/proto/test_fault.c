/* Faults, status codes, and the text that goes into them. */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "proto/fault.h"
#include "proto/text.h"

Test(fault, set_returns_and_keeps_the_status)
{
        struct fault fault;

        cr_assert_eq(fault_set(&fault, ZERO_EQUOTA, "%d of %d", 3, 4), ZERO_EQUOTA);
        cr_assert_eq(fault.status, ZERO_EQUOTA);
        cr_assert_str_eq(fault.text, "3 of 4");
}

Test(fault, set_without_a_fault_returns_the_status)
{
        cr_assert_eq(fault_set(NULL, ZERO_EPERM, "no"), ZERO_EPERM);
}

Test(fault, a_text_that_is_too_long_is_cut_between_characters)
{
        char longer[2 * sizeof(((struct fault *)0)->text)] = "";
        struct fault fault;

        for (size_t shift = 0; shift < 4; shift++) {
                memset(longer, 'x', shift);
                longer[shift] = '\0';
                while (strlen(longer) + 4 < sizeof(longer))
                        strcat(longer, "\xe2\x82\xac");
                fault_set(&fault, ZERO_EINVAL, "%s", longer);
                cr_assert(text_printable(fault.text), "shifted by %zu", shift);
                cr_assert_geq(strlen(fault.text), sizeof(fault.text) - 3);
        }
}

Test(fault, errno_becomes_a_status_with_a_reason)
{
        struct fault fault;

        cr_assert_eq(fault_errno(&fault, -ENOMEM, "window"), ZERO_ENOMEM);
        cr_assert_eq(fault_errno(&fault, -ENOENT, "state"), ZERO_EIO);
        cr_assert_eq(fault_errno(&fault, -ENOSPC, "window"), ZERO_ESHM);
        cr_assert_str_eq(fault.text, "window: No space left on device");
}

Test(fault, every_status_has_a_name_and_a_text)
{
        static const int codes[] = {
#define X(name, code, text) code,
                ZERO_STATUS_MAP(X)
#undef X
        };

        for (size_t i = 0; i < sizeof(codes) / sizeof(*codes); i++) {
                cr_assert_str_neq(zero_status_name(codes[i]), "UNKNOWN");
                cr_assert_str_neq(zero_status_text(codes[i]), "unknown status");
        }
        cr_assert_str_eq(zero_status_name(ZERO_ELAYOUT), "ELAYOUT");
        cr_assert_str_eq(zero_status_text(ZERO_ELAYOUT), "layouts differ");
}

Test(fault, an_unknown_status_has_a_name)
{
        cr_assert_str_eq(zero_status_name(-1), "UNKNOWN");
        cr_assert_str_eq(zero_status_text(12345), "unknown status");
}

Test(text, utf8_is_printable)
{
        cr_assert(text_printable(""));
        cr_assert(text_printable("transformer.h.0/attn weight~"));
        cr_assert(text_printable("\xc2\xa0 \xdf\xbf \xe0\xa0\x80 \xef\xbf\xbf \xf4\x8f\xbf\xbf"));
}

Test(text, control_characters_are_not_printable)
{
        char s[3] = "a";

        for (char c = 1; c < 0x20; c++) {
                s[1] = c;
                cr_assert(!text_printable(s), "%#x", c);
        }
        cr_assert(!text_printable("\x7f"));
        cr_assert(!text_printable("\xc2\x80"));
        cr_assert(!text_printable("\xc2\x9f"));
}

Test(text, what_breaks_lines_or_turns_text_around_is_not_printable)
{
        static const char *const misleading[] = {
                "a\xd8\x9c",     "a\xe2\x80\x8e", "a\xe2\x80\x8f", "a\xe2\x80\xa8", "a\xe2\x80\xa9",
                "a\xe2\x80\xaa", "a\xe2\x80\xae", "a\xe2\x81\xa6", "a\xe2\x81\xa9",
        };

        for (size_t i = 0; i < sizeof misleading / sizeof misleading[0]; i++)
                cr_assert(!text_printable(misleading[i]), "%zu", i);
        cr_assert(
                text_printable("\xe2\x80\x8d \xe2\x80\xa7 \xe2\x80\xaf \xe2\x81\xa5 \xe2\x81\xaa"));
}

Test(text, scrubbed_text_is_printable)
{
        char s[] = "a\n\xc2\x85\xe2\x80\xae"
                   "b\xff\xc3\xa9\xe2\x80";

        text_scrub(s);
        cr_assert_str_eq(s, "a???"
                            "???b?\xc3\xa9??");
}

Test(text, malformed_utf8_is_not_printable)
{
        static const char *const malformed[] = {
                "\x80",
                "\xc1\xbf",
                "\xc2",
                "\xc2z",
                "\xe0\x9f\xbf",
                "\xe2\x82",
                "\xed\xa0\x80",
                "\xf0\x8f\xbf\xbf",
                "\xf4\x90\x80\x80",
                "\xf5\x80\x80\x80",
                "\xff",
                "a\xf0\x9f\x98",
        };

        for (size_t i = 0; i < sizeof(malformed) / sizeof(*malformed); i++)
                cr_assert(!text_printable(malformed[i]), "number %zu", i);
}

Test(text, what_is_cut_anywhere_and_trimmed_is_printable)
{
        static const char whole[] = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z";

        for (size_t n = 0; n < sizeof(whole); n++) {
                char s[sizeof(whole)] = "";
                memcpy(s, whole, n);
                text_trim(s);
                cr_assert(text_printable(s), "cut at %zu", n);
                cr_assert_geq(strlen(s) + 3, n);
        }
}

Test(text, trim_leaves_whole_text_alone)
{
        char s[] = "caf\xc3\xa9";

        text_trim(s);
        cr_assert_str_eq(s, "caf\xc3\xa9");
}

Test(text, a_short_name_is_quoted_whole)
{
        cr_assert_str_eq(text_quote("h.0").text, "'h.0'");
}

Test(text, a_long_name_is_shortened)
{
        char name[256] = "";

        while (strlen(name) < 252)
                strcat(name, "\xe2\x82\xac");
        struct text_quote q = text_quote(name);
        cr_assert(text_printable(q.text));
        cr_assert_str_eq(q.text + strlen(q.text) - 4, "...'");
        cr_assert_eq(strncmp(q.text + 1, name, strlen(q.text) - 5), 0);
}
