/* Records: JSON of a record is read back, and other JSON is refused. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/face/status/record.h"

/* clang-format off */
#define PART(F, R)                      \
        F(text, name, "")               \
        F(number, n, "")

#define ALL(F, R)                       \
        R(called, "for", who, "")       \
        F(number, number, "")           \
        F(real, real, "")               \
        F(flag, flag, "")               \
        F(texts, texts, "")             \
        F(numbers, numbers, "")         \
        R(record, part, record, "")     \
        R(maybe, part, maybe, "")       \
        R(inlined, part, inlined, "")   \
        R(list, part, list, "")

#define COUNTED(F, R)                   \
        F(counts, bytes, "")            \
        F(texts, none, "")
/* clang-format on */

RECORD_DECLARE(part, PART)
RECORD_DECLARE(all, ALL)
RECORD_DECLARE(counted, COUNTED)
RECORD_DEFINE(part, PART)
RECORD_DEFINE(all, ALL)
RECORD_DEFINE(counted, COUNTED)

static void is_json(json_t *json, const char *expected)
{
        char *text = json_dumps(json, JSON_COMPACT);

        cr_assert_str_eq(text, expected);
        free(text);
        json_decref(json);
}

static bool parse(const char *text, struct arena *arena, struct all *ret)
{
        json_t *json = json_loads(text, 0, NULL);
        bool r = record_from_json(all_type(), json, arena, ret);

        cr_assert_not_null(json);
        json_decref(json);
        return r;
}

static const char whole[] =
        "{\"for\":\"a\",\"number\":7,\"real\":0.5,\"flag\":true,\"texts\":[\"b\","
        "\"c\",\"d\"],\"numbers\":[1,null,3],\"record\":{\"name\":\"e\",\"n\":"
        "0},\"maybe\":{\"name\":null,\"n\":1},\"name\":\"f\",\"n\":2,\"list\":"
        "[{\"name\":\"g\",\"n\":3},{\"name\":\"h\",\"n\":null}]}";

Test(record, what_becomes_json_comes_back)
{
        struct arena arena = { NULL };
        struct all all;

        cr_assert(parse(whole, &arena, &all));
        cr_assert_str_eq(all.who, "a");
        cr_assert_eq(all.numbers.items[1], RECORD_NULL);
        cr_assert_eq(all.list.n, 2);
        is_json(record_take_json(all_type(), &all, &arena), whole);
}

Test(record, what_is_not_there_is_null)
{
        struct arena arena = { NULL };
        struct all all;

        cr_assert(parse("{\"record\":{}}", &arena, &all));
        cr_assert_null(all.who);
        cr_assert_eq(all.number, RECORD_NULL);
        cr_assert(isnan(all.real));
        cr_assert_not(all.flag);
        cr_assert_eq(all.texts.n, 0);
        cr_assert_null(all.maybe);
        arena_deinit(&arena);
}

Test(record, other_types_are_refused)
{
        static const char *const texts[] = {
                "[]",
                "{}",
                "{\"record\":{},\"for\":1}",
                "{\"record\":{},\"number\":-1}",
                "{\"record\":{},\"number\":1.5}",
                "{\"record\":{},\"real\":\"1\"}",
                "{\"record\":{},\"flag\":1}",
                "{\"record\":{},\"texts\":[null]}",
                "{\"record\":{},\"texts\":\"a\"}",
                "{\"record\":{},\"numbers\":[\"1\"]}",
                "{\"record\":{\"n\":\"1\"}}",
                "{\"record\":{},\"maybe\":[]}",
                "{\"record\":{},\"list\":{}}",
                "{\"record\":{},\"list\":[1]}",
        };

        for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
                struct arena arena = { NULL };
                struct all all;

                cr_assert_not(parse(texts[i], &arena, &all), "%s", texts[i]);
                arena_deinit(&arena);
        }
}

Test(record, counts_and_lists_grow)
{
        struct arena arena = { NULL };
        struct counted c = { .none = { .n = RECORD_NONE } };

        counts_add(&arena, &c.bytes, "a", 1);
        counts_add(&arena, &c.bytes, "b", 2);
        counts_add(&arena, &c.bytes, "c", RECORD_NULL);
        is_json(record_to_json(counted_type(), &c),
                "{\"bytes\":{\"a\":1,\"b\":2,\"c\":null},\"none\":null}");
        c = (struct counted){ .none = { 0 } };
        for (int i = 0; i < 10000; i++)
                cr_assert(texts_add(&arena, &c.none, arena_text(&arena, "%d", i)));
        for (int i = 0; i < 10000; i++)
                cr_assert_eq(atoi(c.none.items[i]), i);
        arena_deinit(&arena);
}

Test(record, what_found_no_memory_is_not_told)
{
        struct arena arena = { .failed = true };
        struct counted c = { .none = { 0 } };

        cr_assert_null(record_take_json(counted_type(), &c, &arena));
}
