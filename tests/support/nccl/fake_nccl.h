/* What a test tells the fake libnccl.so.2, and what that saw; found as "fake_nccl" by dlsym(). */
#pragma once

#include <nccl.h>

struct fake_nccl {
        const char *failing; /* this function fails, */
        ncclResult_t with;   /* so */
        ncclResult_t async;  /* of the last member */
        char log[4096];      /* the calls: "init 3; begin; send 0>1 16; ..." */
        /* The environment when it was loaded; "": not set. */
        char interface[32], ras[32], id[32], direct[32];
};
