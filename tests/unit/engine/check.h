/* Checks for executables that run under the thread sanitizer, where Criterion does not. */
#pragma once

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition, ...)                                                          \
        do {                                                                           \
                if (!(condition)) {                                                    \
                        fprintf(stderr, "%s:%d: %s:", __FILE__, __LINE__, #condition); \
                        fprintf(stderr, " " __VA_ARGS__);                              \
                        fputc('\n', stderr);                                           \
                        exit(1);                                                       \
                }                                                                      \
        } while (0)
