/* Files of a test, in a directory of its own that is deleted with the test. */
#pragma once

#include <stddef.h>
#include <sys/types.h>

/* .init and .fini of a suite.  They remove every ZEROD_ variable from the environment. */
void files_setup(void);
void files_teardown(void);
/* Writes a file and returns its path, which is valid for three more calls. */
const char *files_write(const char *name, const void *data, size_t size, mode_t mode);
const char *files_text(const char *name, const char *text);
