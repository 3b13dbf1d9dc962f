/* Budgets of users; see budget.h. */
#include "daemon/face/rpc/budget.h"

enum { PASSED_MAX_MS = 3600 * 1000 }; /* longer than any debt lasts; the sum cannot overflow */
enum { READ_DEBT_NS = 1000000000 };   /* at most: reads are bounded in number, too */

void budget_init(struct budget *budget, uint64_t now_ms)
{
        *budget = (struct budget){ .quantum_ns = QUANTUM_ALONE_NS,
                                   .credit_ns = QUANTUM_ALONE_NS,
                                   .reads_ns = QUANTUM_ALONE_NS,
                                   .filled_ms = now_ms };
}

static void fill(int64_t *credit_ns, int64_t ns, int64_t most)
{
        *credit_ns = *credit_ns + ns < most ? *credit_ns + ns : most;
}

bool budget_may_work(struct budget *budget, uint64_t now_ms)
{
        uint64_t passed = now_ms - budget->filled_ms;

        budget->filled_ms = now_ms;
        if (passed > PASSED_MAX_MS)
                passed = PASSED_MAX_MS;
        fill(&budget->credit_ns, (int64_t)passed * budget->quantum_ns, budget->quantum_ns);
        fill(&budget->reads_ns, (int64_t)passed * budget->quantum_ns, budget->quantum_ns);
        return budget->credit_ns > 0;
}

void budget_worked(struct budget *budget, uint64_t ns)
{
        budget->credit_ns -= (int64_t)ns;
}

bool budget_may_read(const struct budget *budget)
{
        return budget->reads_ns > 0;
}

void budget_read(struct budget *budget, uint64_t ns)
{
        uint64_t room = (uint64_t)(budget->reads_ns + READ_DEBT_NS);

        budget->reads_ns -= (int64_t)(ns < room ? ns : room);
}

bool budget_grant(struct budget *budget, size_t bytes)
{
        if (budget->frames && budget->frames + bytes > FRAMES_MAX)
                return false;
        budget->frames += bytes;
        return true;
}
