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
KERNEL(cuda_product)
KERNEL(cuda_divide)
KERNEL(cuda_sum)
KERNEL(cuda_pack)
KERNEL(cuda_unpack)
