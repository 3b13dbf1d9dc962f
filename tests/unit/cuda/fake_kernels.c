/* In the place of the kernels: the plugin's C files link, and what would be launched is not. */
#define KERNEL(name)        \
        int name(void);     \
        int name(void)      \
        {                   \
                return -38; \
        }

KERNEL(cuda_update)
KERNEL(cuda_cast)
KERNEL(cuda_reduce)
KERNEL(cuda_sum)
