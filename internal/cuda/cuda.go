// Package cuda is as much of NVIDIA's driver interface as KV memory on a GPU needs: devices, their memory, and copies
// between it and the host's. libcuda.so.1 is opened at run time, without cgo and without CUDA's toolkit; a machine that
// lacks it gets an error from Open and nothing else changes. It starts no kernel and knows nothing of blocks.
package cuda
