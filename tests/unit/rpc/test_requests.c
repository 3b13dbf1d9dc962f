/* Every request has a row that says what it costs, what bounds it and who takes it. */
#include <criterion/criterion.h>

#include "daemon/face/rpc/query.h"

static bool is_body(const ProtobufCFieldDescriptor *f)
{
        return f->quantifier_offset == offsetof(Zero__Request, body_case);
}

Test(requests, each_of_the_protocol_has_a_row)
{
        const ProtobufCMessageDescriptor *d = &zero__request__descriptor;
        const struct call_kind *kind;
        uint32_t n = 0;

        for (unsigned i = 0; i < d->n_fields; i++) {
                if (!is_body(&d->fields[i]))
                        continue;
                kind = call_kind(d->fields[i].id);
                cr_expect_neq(kind->cost, CALL_UNKNOWN, "%s", d->fields[i].name);
                cr_expect_eq(!!kind->handle + !!kind->rank + !!kind->ordered, 1, "%s",
                             d->fields[i].name);
                cr_expect(!kind->reply || !kind->write, "%s", d->fields[i].name);
                n++;
        }
        cr_assert_eq(n, d->n_fields - 1); /* beside the sequence number */
        cr_assert_eq(call_kind(0)->cost, CALL_UNKNOWN);
        cr_assert_eq(call_kind(n + 100)->cost, CALL_UNKNOWN);
}

Test(requests, each_query_has_a_bound_and_each_survey_that_of_surveys)
{
        const struct query_kind *kind;

        for (size_t i = 0; (kind = query_kind(i)); i++) {
                bool survey = kind->start == survey_query || kind->start == shards_query;

                cr_expect_neq(kind->bound, 0, "%s", kind->what);
                cr_expect_eq(survey, kind->bound == QUERY_SURVEY || kind->bound == QUERY_LARGE,
                             "%s", kind->what);
        }
}
