/* GPU memory and the network: tells backends/ how this process's GPU memory gets to a NIC. */
#pragma once

/* Answers for CUDA memory from now on (backends/memory.h): of the current device, whose copies run
 * on two streams of its own. Once per communicator, before the network is opened; one communicator
 * per process has GPU memory on the network. 0, -EBUSY (another one has it), or -EIO. The last
 * error of CUDA says more. */
int cuda_register_open(void);

/* After the network is closed. Does nothing where it is not open. */
void cuda_register_close(void);
