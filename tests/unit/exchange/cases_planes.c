#include "cases.h"
const struct test_case plane_cases[] = { { 0 } };
