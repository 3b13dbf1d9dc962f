/* Translates all CUDA codes; they appear nowhere else. */
#include "cuda/errors.h"

#include <errno.h>

int cuda_errno(cudaError_t error)
{
        if (error == cudaSuccess)
                return 0;
        (void)cudaGetLastError();
        switch (error) {
        case cudaErrorInsufficientDriver: /* 35: also without a driver */
        case cudaErrorNoDevice:           /* 100 */
        case cudaErrorStubLibrary:
        case cudaErrorSystemDriverMismatch:
        case cudaErrorCompatNotSupportedOnDevice:
                return -ENODEV;
        case cudaErrorNoKernelImageForDevice:
        case cudaErrorUnsupportedPtxVersion:
                return -ENOTSUP;
        case cudaErrorMemoryAllocation:
                return -ENOMEM;
        case cudaErrorInvalidValue:
        case cudaErrorInvalidDevice:
                return -EINVAL;
        case cudaErrorDevicesUnavailable: /* the compute mode lets only one process use it */
                return -EBUSY;
        default:
                return -EIO;
        }
}
