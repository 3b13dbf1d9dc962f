/* memory.h - memory of the machine. */
#pragma once

#include <stdint.h>

/* Bytes that the machine can spare; UINT64_MAX: unknown. */
uint64_t memory_available(void);
