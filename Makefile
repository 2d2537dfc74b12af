# mkernel: `make help` lists the targets. Everything lands in build/.
# A .c file is found by where it lies; a new one needs no line here.

BUILD    ?= build
CC       ?= gcc
CLANG    ?= clang
CUDA_HOME ?= $(firstword $(wildcard /usr/local/cuda /usr/local/cuda-13.0 /usr/local/cuda-12.9))
NVCC     ?= $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc) $(shell command -v nvcc 2>/dev/null))
SAN      ?=
WARN     := -Wall -Wextra -Werror -Wno-unused-parameter -Wshadow -Wstrict-prototypes -Wmissing-prototypes
CFLAGS   ?= -O2 -g
ALL_CFLAGS := -std=gnu11 -fPIC -fvisibility=default -pthread -I. $(WARN) $(CFLAGS) $(SAN:%=-fsanitize=%)
LDFLAGS  += -pthread $(SAN:%=-fsanitize=%)

# What this machine has. `have` compiles one line that needs the header (the library is tried where it is linked).
have = $(shell printf '\#include <$(1)>\n' | $(CC) $(3) -x c -fsyntax-only - 2>/dev/null && echo $(2))
HAVE_VERBS    := $(call have,infiniband/verbs.h,yes)
HAVE_EFA      := $(call have,infiniband/efadv.h,yes)
HAVE_OPENBLAS := $(call have,cblas.h,yes)
HAVE_SQLITE   := $(call have,sqlite3.h,yes)
HAVE_NCURSES  := $(call have,ncurses.h,yes)
HAVE_CMOCKA   := $(shell printf '\#include <stdarg.h>\n\#include <stddef.h>\n\#include <setjmp.h>\n\#include <stdint.h>\n\#include <cmocka.h>\n' | $(CC) -x c -fsyntax-only - 2>/dev/null && echo yes)
HAVE_GNUPLOT  := $(shell command -v gnuplot >/dev/null && echo yes)
HAVE_CUDA     := $(if $(NVCC),yes,)

# The library: core, the executors and the tracer. softnic is a library of its own, as a device driver would be.
LIB_C   := $(wildcard core/*.c core/*/*.c sim/*.c sim/*/*.c tracer/*.c) $(filter-out backends/softnic/%,$(wildcard backends/*.c backends/*/*.c))
NIC_C   := $(wildcard backends/softnic/*.c)
CMD_C   := $(wildcard experiments/*.c experiments/*/*.c)
TUI_C   := $(wildcard tui/*.c)
ifneq ($(HAVE_CUDA),)
LIB_CU  := $(wildcard kernels/*.cu)
ALL_CFLAGS += -DMK_HAVE_CUDA -isystem $(CUDA_HOME)/include
# libcudart_static needs no CUDA library at start: the binary runs on machines without a GPU.
CUDA_LIBS := -L$(CUDA_HOME)/lib64 -lcudart_static -lrt -ldl
NVCCFLAGS := -std=c++17 -O3 -lineinfo -I. -gencode=arch=compute_90a,code=sm_90a --warn-on-spills -Werror all-warnings \
             -Xcompiler=-fPIC,-Wall,-Wno-unused-function -DMK_HAVE_CUDA
endif
LIB_O := $(LIB_C:%.c=$(BUILD)/%.o) $(LIB_CU:%.cu=$(BUILD)/%.cu.o)
NIC_O := $(NIC_C:%.c=$(BUILD)/%.o)
CMD_O := $(CMD_C:%.c=$(BUILD)/%.o) $(TUI_C:%.c=$(BUILD)/%.o)
TESTS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c))
LIBS  := -lsqlite3 -lopenblas -lm -ldl

.PHONY: all found help
all: found $(BUILD)/libsoftnic.so $(BUILD)/libmkernel.so $(BUILD)/mkernel

found:
	@echo "found: CUDA=$(or $(NVCC),no) verbs=$(or $(HAVE_VERBS),no) EFA=$(or $(HAVE_EFA),no) OpenBLAS=$(or $(HAVE_OPENBLAS),no)" \
	      "SQLite=$(or $(HAVE_SQLITE),no) ncurses=$(or $(HAVE_NCURSES),no) cmocka=$(or $(HAVE_CMOCKA),no) gnuplot=$(or $(HAVE_GNUPLOT),no)"

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(NVCC) $(NVCCFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/libsoftnic.so: $(NIC_O)
	$(CC) -shared $(LDFLAGS) -o $@ $^ -ldl

$(BUILD)/libmkernel.so: $(LIB_O)
	$(CC) -shared $(LDFLAGS) -o $@ $^ $(LIBS) $(CUDA_LIBS)

# The command and the tests link the objects, so that build/mkernel can be copied alone to another machine.
$(BUILD)/mkernel: $(CMD_O) $(LIB_O)
	$(CC) $(LDFLAGS) -o $@ $^ $(LIBS) $(CUDA_LIBS) -lncursesw

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(LIB_O)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(LIBS) $(CUDA_LIBS) -lcmocka

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
