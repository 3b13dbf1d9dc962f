/* A library with thread-local storage that is loaded late, as plugins and NCCL are. */
__attribute__((visibility("default"))) char *late_block(void);

char *late_block(void)
{
        static _Thread_local char block[68];

        return block;
}
