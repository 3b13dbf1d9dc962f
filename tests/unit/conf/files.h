/* Files of a test, in a directory of its own that goes with the test. */
#pragma once

#include <stddef.h>
#include <sys/types.h>

/* .init and .fini of a suite; the environment loses every ZEROD_ variable. */
void files_setup(void);
void files_teardown(void);
/* Writes a file and returns its path, good for three more calls. */
const char *files_write(const char *name, const void *data, size_t size, mode_t mode);
const char *files_text(const char *name, const char *text);
