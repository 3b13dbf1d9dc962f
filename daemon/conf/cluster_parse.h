/* cluster_parse.h - parts of conf_cluster(): names of nodes and key files. */
#pragma once

#include "daemon/conf/conf.h"
#include "proto/cleanup.h"
#include "proto/text.h"

/* Letters, digits, '_', '-', '.', at most NODE_NAME_MAX. */
bool node_name_valid(const char *name);
/* Reads a key file, which only its owner may have access to; the fault begins with `option`. */
int key_read(const char *option, const char *path, uint8_t ret_key[static CLUSTER_KEY],
             struct fault *fault);
