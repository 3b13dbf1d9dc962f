/* The table of subcommands, from the rows of meson.build, and their help texts. */
#pragma once

#include "ctl.h"

#define X(name) extern const struct command command_##name;
ZEROCTL_COMMANDS
#undef X

#define X(name) +1
enum { N_COMMANDS = 0 ZEROCTL_COMMANDS };
#undef X

/* In the order of --help. */
extern const struct command *const commands[N_COMMANDS];

/* The i-th option of a subcommand, or NULL. */
const struct command_option *command_option(const struct command *command, size_t i);

void help_all(FILE *out);
void help_command(FILE *out, const struct command *command);
