/* Empty kernels, so that the plugin's C files link; nothing is launched. */
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
