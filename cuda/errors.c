/* Translates every code of CUDA: none appears anywhere else. */
#include "cuda/errors.h"

#include <errno.h>

int cuda_errno(cudaError_t error)
{
        if (error == cudaSuccess)
                return 0;
        (void)cudaGetLastError();
        switch (error) {
        case cudaErrorInsufficientDriver: /* 35: also where there is no driver */
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
        case cudaErrorDevicesUnavailable: /* its compute mode lets one process use it */
                return -EBUSY;
        default:
                return -EIO;
        }
}
