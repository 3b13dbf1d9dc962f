#include "cases.h"
const struct test_case trouble_cases[] = { { 0 } };
