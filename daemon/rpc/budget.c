/* Budgets of users; see budget.h. */
#include "daemon/rpc/budget.h"

enum { PASSED_MAX_MS = 3600 * 1000 }; /* longer than any debt lasts; the sum cannot overflow */

void budget_init(struct budget *budget, uint64_t now_ms)
{
        *budget = (struct budget){ .quantum_ns = QUANTUM_ALONE_NS,
                                   .credit_ns = QUANTUM_ALONE_NS,
                                   .filled_ms = now_ms };
}

bool budget_may_work(struct budget *budget, uint64_t now_ms)
{
        uint64_t passed = now_ms - budget->filled_ms;

        budget->filled_ms = now_ms;
        if (passed > PASSED_MAX_MS)
                passed = PASSED_MAX_MS;
        budget->credit_ns += (int64_t)passed * budget->quantum_ns;
        if (budget->credit_ns > budget->quantum_ns)
                budget->credit_ns = budget->quantum_ns;
        return budget->credit_ns > 0;
}

void budget_worked(struct budget *budget, uint64_t ns)
{
        budget->credit_ns -= (int64_t)ns;
}

bool budget_grant(struct budget *budget, size_t bytes)
{
        if (budget->frames && budget->frames + bytes > FRAMES_MAX)
                return false;
        budget->frames += bytes;
        return true;
}
