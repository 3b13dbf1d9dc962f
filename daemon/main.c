/* zerod: arguments, configuration, run, exit code. */
#include <stdio.h>

#include "daemon/floor/base/crash.h"
#include "daemon/node.h"

int main(int argc, char **argv)
{
        struct conf *conf = NULL;
        struct fault fault = { 0 };
        bool done = false;
        int r = crash_setup(&done, &fault);

        if (r == 0 && !done)
                r = conf_load(argc, argv, &conf, &fault);
        if (done || r == CONF_DONE)
                return 0;
        if (r == 0)
                r = node_run(conf, &fault);
        if (r)
                fprintf(stderr, "zerod: %s\n", fault.text);
        conf_free(conf);
        return r ? 1 : 0;
}
