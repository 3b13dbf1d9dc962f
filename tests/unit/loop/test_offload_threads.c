/*
 * The pool without Criterion, so that it also runs under the thread sanitizer:
 * many threads, few threads, nothing to do.
 */
#include "tasks.h"

int main(void)
{
        tasks_run(1, 1, 1);
        tasks_run(4, 0, 1);
        tasks_run(1, 64, 20);
        for (int i = 0; i < 20; i++)
                tasks_run(4, 16, 30);
        return 0;
}
