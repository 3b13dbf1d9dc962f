#!/usr/bin/env python3
"""What the driver says that GPU 0 can share and be told, where zerod depends on it: one line each."""
import ctypes
import sys

# CUdevice_attribute of cuda.h
ATTRIBUTES = {"compute mode (0: shared)": 20, "bytes of L2": 38, "preemption": 90, "host memory is registered": 99,
              "virtual memory": 102, "memory as descriptors": 103, "GPUDirect RDMA": 116, "GPUDirect RDMA of virtual memory": 110,
              "events between processes": 125}


def main():
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as why:
        sys.exit(f"no driver: {why}")
    status = driver.cuInit(0)
    if status:
        sys.exit(f"cuInit: {status}")
    for name, number in ATTRIBUTES.items():
        value = ctypes.c_int()
        status = driver.cuDeviceGetAttribute(ctypes.byref(value), number, 0)
        print(f"{name}: {value.value if status == 0 else f'error {status}'}")


if __name__ == "__main__":
    main()
