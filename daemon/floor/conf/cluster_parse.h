/* cluster_parse.h - parts of conf_cluster() and conf_http(): names of nodes, ports and key files.
 */
#pragma once

#include "daemon/floor/conf/conf.h"
#include "proto/cleanup.h"
#include "proto/text.h"

/* Letters, digits, '_', '-', '.', at most NODE_NAME_MAX. */
bool node_name_valid(const char *name);
/* 1 to 65535. */
bool port_valid(const char *text, uint16_t *ret);
/* Reads a key file, which only its owner may have access to; the fault begins with `option`. */
int key_read(const char *option, const char *path, uint8_t ret_key[static CLUSTER_KEY],
             struct fault *fault);
