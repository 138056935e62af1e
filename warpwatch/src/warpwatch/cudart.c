/* Stands in for the CUDA runtime, libcudart.so, under host code that nvcc has compiled. What is called here is asked of
   `warpwatch run` (cudart.py), which has the device; what arguments say is checked here. No header of CUDA's is needed.
   A function that is missing is an "undefined symbol", which the loader of programs names.

   Memory of the device is a file that both processes map at BASE. The first HALF of it is the device's own: the host
   can touch it through copies only, which go by `alias`. The second one is memory that host and device share. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

typedef struct { unsigned x, y, z; } dim3;
typedef int64_t number;
typedef int error;                                                     /* cudaError_t */
enum { INVALID = 1, NO_MEMORY = 2, FORKED = 3, CONFIGURATION = 9, NO_SYMBOL = 13, NO_FUNCTION = 98, NO_DEVICE = 101,
       FAILED = 719, TOO_LARGE = 720, UNSUPPORTED = 801 };
enum { VARIABLE = 0, HOST = 1, DEVICE = 2, MANAGED = 3 };              /* cudaMemoryType */
enum { PTX = 1 };                                                       /* kind of device code */
enum { TO_DEVICE = 1, FROM_DEVICE = 2, ANY = 4, FILL = 5 };            /* bits of cudaMemcpyKind; FILL has no source */

/* Asking -------------------------------------------------------------------------------------------------------- */

static struct { char what[16]; uint32_t count, size; number numbers[12]; } question;
static __thread struct { number status, numbers[4]; } answer;
static __thread error last;
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pid_t owner; /* the process that has begun, which a child that it forks is not */
static char *alias;
static int wire;

static void unlock(int *locked) { pthread_mutex_unlock(&lock); }
#define LOCKED __attribute__((cleanup(unlock))) int locked = pthread_mutex_lock(&lock); /* up to a function's end */

static void quit(const char *why) {
    fflush(stdout);
    fprintf(stderr, "warpwatch: %s\n", why);
    _exit(1);
}

static void pass(int out, void *bytes, size_t size) {
    for (char *at = bytes; size;) {
        ssize_t some = out ? send(wire, at, size, MSG_NOSIGNAL) : recv(wire, at, size, 0);
        if (some < 0 && errno == EINTR)
            continue;
        if (some <= 0)
            quit("`warpwatch run` has ended, and with it the device");
        at += some, size -= some;
    }
}

/* What cudart.py calls: maps memory of the device, and lets others find it in a folder. */
int warpwatch_share(const char *folder) {
    int memory = memfd_create("warpwatch", MFD_CLOEXEC), how = MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    char file[99], path[4096];
    snprintf(file, sizeof file, "/proc/%d/fd/%d", (int)getpid(), memory);
    snprintf(path, sizeof path, "%s/memory", folder);
    return ftruncate(memory, 2 * HALF) || symlink(file, path) ||
           mmap((void *)BASE, 2 * HALF, PROT_READ | PROT_WRITE, how, memory, 0) != (void *)BASE;
}

int warpwatch_drop(void *start, size_t size) { return madvise(start, size, MADV_REMOVE); }
static void begin(void) {
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    char path[4096];
    const char *folder = getenv("WARPWATCH_CUDART");
    if (!folder)
        quit("this CUDA runtime works under `warpwatch run` only");
    snprintf(place.sun_path, sizeof place.sun_path, "%s/socket", folder);
    snprintf(path, sizeof path, "%s/memory", folder);
    int memory = open(path, O_RDWR | O_CLOEXEC);
    wire = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (memory < 0 || connect(wire, (void *)&place, sizeof place))
        quit("`warpwatch run` is not there any more");
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    void *own = mmap((void *)BASE, 2 * HALF, PROT_NONE, how, -1, 0);
    if (own == (void *)BASE) /* of which a part is replaced */
        own = mmap((void *)(BASE + HALF), HALF, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory, HALF);
    alias = mmap(0, HALF, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (own != (void *)(BASE + HALF) || alias == MAP_FAILED)
        quit("memory of the device finds no room among the addresses of this process");
    close(memory);
    owner = getpid();
}

static error keep(error status) { return status ? last = status : 0; }
static error ask(const char *what, const void *bytes, size_t size, const number *numbers, size_t count) {
    LOCKED
    if (!owner)
        begin();
    answer.status = FORKED;
    if (owner == getpid()) {
        strncpy(question.what, what, sizeof question.what);
        question.count = count, question.size = size;
        memcpy(question.numbers, numbers, count * sizeof *numbers);
        pass(1, &question, sizeof question);
        pass(1, (void *)bytes, size);
        pass(0, &answer, sizeof answer);
    }
    return keep(answer.status);
}

#define N(pointer) ((number)(pointer))
#define ASK(what, bytes, size, ...) \
    ask(what, bytes, size, (number[]){__VA_ARGS__}, sizeof((number[]){__VA_ARGS__}) / sizeof(number))
#define SAME(name, as) error name() __attribute__((alias(#as))); /* whatever more it takes */
#define CALL(what, ...) ASK(what, __func__, strlen(__func__), __VA_ARGS__) /* which names the call, for messages */

static error refuse(const char *name, error status, const char *why, ...) {
    char text[999];
    int size = snprintf(text, sizeof text, "%s: ", name);
    va_list values;
    va_start(values, why);
    vsnprintf(text + size, sizeof text - size, why, values);
    va_end(values);
    ask("refuse", text, strlen(text), 0, 0);
    return keep(status);
}

/* Modules, kernels and variables: what host code registers before `main`, asked for when it is used --------------- */

#define GENERATION (10 * COMPUTE_CAPABILITY_MAJOR + COMPUTE_CAPABILITY_MINOR)
struct fat { uint32_t magic; uint16_t version, head; uint64_t size; };
struct part { uint16_t kind, version; uint32_t head; uint64_t size; uint32_t packed, options, ptx, generation; };
struct wrapper { int magic, version; const struct fat *one, **linked; };
struct module { const struct wrapper *from; number id; int generation; }; /* that of its PTX */
struct named {
    const void *host;
    const char *name;
    struct module *module;
    struct named *next;
    number id, count, shared, local, dynamic, *sizes; /* of a kernel; `dynamic` is what it is allowed, if asked */
    struct memory *memory;                            /* of a variable */
    size_t size;
    void **managed;                                   /* what host code holds its address in, if it is managed */
};
static struct named *functions, *variables;

static struct named *add(struct named **list, void *module, const void *host, const char *name) {
    struct named *made = calloc(1, sizeof *made);
    *made = (struct named){.host = host, .name = name, .module = module, .next = *list, };
    return *list = made;
}

static struct named *find(struct named *list, const void *host) {
    while (list && list->host != host && (void *)list != host)
        list = list->next;
    return list;
}

/* Hands over the PTX of a module, that for the latest GPU up to ours; several modules may be linked to one. */
static void ready(struct module *module) {
    static number modules;
    const struct fat *one[] = {module->from->one, 0}, **each = module->from->version == 2 ? module->from->linked : one;
    if (module->id)
        return;
    for (module->id = ++modules; *each; each++) {
        const char *at = (char *)*each + (*each)->head, *end = at + (*each)->size, *best = 0;
        unsigned latest = 0;
        for (const struct part *part; at < end; at += part->head + part->size) {
            part = (void *)at;
            if (part->kind == PTX && !part->packed && part->generation <= GENERATION && part->generation > latest)
                best = at + part->head, latest = part->generation;
        }
        module->generation = latest;
        if (best)
            ASK("module", best, strnlen(best, end - best), module->id);
    }
}

static error kernel(const void *host, struct named **found) {
    LOCKED
    static number kernels;
    struct named *f = *found = find(functions, host);
    if (!f)
        return keep(NO_FUNCTION);
    if (f->sizes)
        return 0;
    ready(f->module);
    number id = ++kernels, count = 1, *sizes = 0;
    for (number n = 0; n < count; n++) {
        if (ASK("kernel", f->name, strlen(f->name), f->module->id, id, n))
            return answer.status;
        count = answer.numbers[1];
        sizes = realloc(sizes, (count + 1) * sizeof *sizes);
        sizes[n] = answer.numbers[0];
    }
    f->id = id, f->count = count, f->shared = answer.numbers[2], f->local = answer.numbers[3], f->sizes = sizes;
    return 0;
}

/* Memory -------------------------------------------------------------------------------------------------------- */

static struct memory { char *start; size_t size; int type; char name[40]; struct memory *next; } *memories;

static struct memory *hold(void *start, size_t size, int type, const char *name) {
    LOCKED
    struct memory *made = malloc(sizeof *made);
    *made = (struct memory){start, size, type, "", memories};
    snprintf(made->name, sizeof made->name, "%s", name);
    return memories = made;
}

static struct memory *holder(const void *p) {
    LOCKED
    struct memory *m = memories;
    while (m && ((char *)p < m->start || (char *)p >= m->start + m->size))
        m = m->next;
    return m;
}

static error symbol(const void *host, char **address, size_t *size) {
    LOCKED
    struct named *v = find(variables, host);
    if (!v)
        return keep(NO_SYMBOL);
    if (!v->memory) {
        ready(v->module);
        if (ASK("symbol", v->name, strlen(v->name), v->module->id))
            return answer.status;
        v->memory = hold((void *)answer.numbers[0], v->size, VARIABLE, v->name);
    }
    *address = v->memory->start, *size = v->memory->size;
    return 0;
}

error cudaGetSymbolAddress(void **address, const void *host) {
    size_t size;
    return symbol(host, (char **)address, &size);
}

error cudaGetSymbolSize(size_t *size, const void *host) {
    char *address;
    return symbol(host, &address, size);
}

static error give(const char *name, void **address, size_t size, int type) {
    static const char *titles[] = {"", "pinned memory", "allocation", "managed memory"};
    static int given[4];
    char title[40];
    if (!address)
        return keep(INVALID);
    *address = 0;
    if (size > FREE)
        return keep(NO_MEMORY);
    snprintf(title, sizeof title, "%s %d", titles[type], ++given[type]);
    if (!size || ASK("malloc", title, strlen(title), size, type != DEVICE))
        return size ? answer.status : 0;
    *address = hold((void *)answer.numbers[0], size, type, title)->start;
    return 0;
}

static error end(const char *name, void *address, int type) {
    LOCKED
    struct memory **m = &memories, *gone;
    while (*m && (*m)->start != address)
        m = &(*m)->next;
    if (!address)
        return 0;
    if (!(gone = *m) || gone->type == VARIABLE || (gone->type == HOST) != (type == HOST))
        return refuse(name, INVALID, gone ? "%p is %s" : "%p is no memory of the device, or freed already", address,
                      gone ? gone->name : "");
    *m = gone->next;
    free(gone);
    return ASK("free", name, strlen(name), N(address));
}

error cudaMalloc(void **p, size_t size) { return give(__func__, p, size, DEVICE); }
error cudaMallocAsync(void **p, size_t size, void *stream) { return give(__func__, p, size, DEVICE); }
error cudaMallocManaged(void **p, size_t size, unsigned flags) { return give(__func__, p, size, MANAGED); }
error cudaMallocHost(void **p, size_t size) { return give(__func__, p, size, HOST); }
error cudaHostAlloc(void **p, size_t size, unsigned flags) { return give(__func__, p, size, HOST); }
error cudaFree(void *p) { return end(__func__, p, DEVICE); }
error cudaFreeAsync(void *p, void *stream) { return end(__func__, p, DEVICE); }
error cudaFreeHost(void *p) { return end(__func__, p, HOST); }

error cudaMallocPitch(void **p, size_t *pitch, size_t width, size_t height) {
    *pitch = (width + 511) / 512 * 512;
    return give(__func__, p, *pitch * height, DEVICE);
}

error cudaHostGetDevicePointer(void **device, void *host, unsigned flags) {
    struct memory *m = holder(host);
    return m && m->type != DEVICE ? *device = host, 0 : keep(INVALID);
}

struct pointer { int type, device; void *on_device, *on_host; };
error cudaPointerGetAttributes(struct pointer *about, const void *p) {
    struct memory *m = holder(p);
    int type = m ? m->type ? m->type : DEVICE : 0, device = m ? 0 : -2; /* cudaInvalidDeviceId */
    *about = (struct pointer){type, device, m ? (void *)p : 0, type == DEVICE ? 0 : (void *)p};
    return 0;
}

error cudaMemGetInfo(size_t *free, size_t *total) { return *total = *free = FREE, 0; }

static char *reach(const void *p) { return N(p) >= BASE && N(p) < BASE + HALF ? alias + (N(p) - BASE) : (char *)p; }
static error side(const char *name, const void *p, size_t size, int kind, int device) {
    int there = N(p) >= BASE && N(p) < BASE + 2 * HALF;
    struct memory *m = there ? holder(p) : 0;
    if (kind != ANY && (device ? !there : there && N(p) < BASE + HALF))
        return refuse(name, INVALID, "cudaMemcpyKind is %d, and %p not the %s's", kind, p, device ? "device" : "host");
    if (there && (!m || (char *)p + size > m->start + m->size))
        return refuse(name, INVALID, m ? "it asks for %zu bytes of %s, which has %zu from there on" :
                      "it asks for %zu bytes of the device's, where none are, or are any more", size, m ? m->name : "",
                      m ? m->start + m->size - (char *)p : 0);
    return 0;
}

static number apart; /* whether there are streams for which stream 0 does not wait */

/* Copies rows; if `kind` is FILL, `step` is the value that they are filled with. */
static error copy(const char *name, void *to, size_t to_step, const void *from, size_t step, size_t width,
                  size_t height, int kind, void *stream) {
    if (!width || !height)
        return 0;
    if (side(name, to, (height - 1) * to_step + width, kind, kind & TO_DEVICE) ||
        side(name, from, (height - 1) * step + width, kind, kind & FROM_DEVICE))
        return last;
    struct memory none = {0}, *target = holder(to), *source = holder(from);
    target = target ? target : &none, source = source ? source : &none;
    if (ASK("copy", name, strlen(name), width, height, N(stream), N(source->start), N(from) - N(source->start), step,
            N(target->start), N(to) - N(target->start), to_step))
        return answer.status;
    for (size_t n = 0; n < height; n++)
        if (kind == FILL)
            memset(reach(to) + n * to_step, step, width);
        else
            memmove(reach(to) + n * to_step, reach(from) + n * step, width);
    return apart && kind != FILL && !strstr(name, "Async") ? ASK("wait", name, strlen(name), 0) : 0;
}

static error copy_symbol(const char *name, const void *host, void *other, size_t size, size_t offset, int to, int kind,
                         void *stream) {
    char *at;
    size_t whole;
    if (symbol(host, &at, &whole))
        return last;
    return copy(name, to ? at + offset : other, size, to ? other : at + offset, size, size, 1, kind, stream);
}

#define WITH_ASYNC(name, call, ...) \
    error name(__VA_ARGS__) { void *stream = 0; return call; } \
    error name##Async(__VA_ARGS__, void *stream) { return call; }

WITH_ASYNC(cudaMemcpy, copy(__func__, to, size, from, size, size, 1, kind, stream),
           void *to, const void *from, size_t size, int kind)
WITH_ASYNC(cudaMemcpy2D, copy(__func__, to, to_step, from, step, width, height, kind, stream),
           void *to, size_t to_step, const void *from, size_t step, size_t width, size_t height, int kind)
WITH_ASYNC(cudaMemset, copy(__func__, to, size, 0, value & 255, size, 1, FILL, stream),
           void *to, int value, size_t size)
WITH_ASYNC(cudaMemset2D, copy(__func__, to, step, 0, value & 255, width, height, FILL, stream),
           void *to, size_t step, int value, size_t width, size_t height)
WITH_ASYNC(cudaMemcpyToSymbol, copy_symbol(__func__, host, (void *)from, size, offset, 1, kind, stream),
           const void *host, const void *from, size_t size, size_t offset, int kind)
WITH_ASYNC(cudaMemcpyFromSymbol, copy_symbol(__func__, host, to, size, offset, 0, kind, stream),
           void *to, const void *host, size_t size, size_t offset, int kind)

/* Launches ------------------------------------------------------------------------------------------------------ */

struct sizes { dim3 grid, block; size_t shared; void *stream; };
struct attribute { int id, padding; union { int number; char bytes[64]; } value; };
struct config { struct sizes sizes; struct attribute *attributes; unsigned count; };
static __thread struct sizes pushed[64];
static __thread unsigned depth;

void **__cudaRegisterFatBinary(const struct wrapper *from) {
    struct module *made = calloc(1, sizeof *made);
    made->from = from;
    return (void **)made;
}

void __cudaRegisterFatBinaryEnd(void **module) {}
void __cudaUnregisterFatBinary(void **module) {}

void __cudaRegisterFunction(void **module, const char *host, char *device, const char *name, int limit, void *thread,
                            void *block, void *blockdim, void *griddim, int *warp) {
    add(&functions, module, host, name);
}

void __cudaRegisterVar(void **module, char *host, char *device, const char *name, int ext, size_t size, int constant,
                       int global) {
    add(&variables, module, host, name)->size = size;
}

void __cudaRegisterManagedVar(void **module, void **host, char *device, const char *name, int ext, size_t size,
                              int constant, int global) {
    struct named *made = add(&variables, module, host, name);
    made->managed = host, made->size = size;
}

char __cudaInitModule(void **module) { /* before host code reads what `managed` is */
    size_t size;
    for (struct named *v = variables; v; v = v->next)
        if (v->managed && (void **)v->module == module && symbol(v->host, (char **)v->managed, &size))
            return 0;
    return 1;
}

error cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *host, int threads, size_t dynamic) {
    struct named *f;
    if (kernel(host, &f))
        return last;
    if (threads < 1)
        return keep(INVALID);
    int most = MAX_THREADS_PER_MULTIPROCESSOR / ((threads + WARP_SIZE - 1) / WARP_SIZE * WARP_SIZE);
    int room = MAX_SHARED_MEMORY_PER_MULTIPROCESSOR / (f->shared + dynamic + 1024);
    most = most > MAX_BLOCKS_PER_MULTIPROCESSOR ? MAX_BLOCKS_PER_MULTIPROCESSOR : most;
    *blocks = threads > MAX_THREADS_PER_BLOCK ? 0 : most < room ? most : room;
    return 0;
}

/* `cooperative`: all blocks are there at once; `unknown`: an attribute whose meaning is not known. */
static error launch(const void *host, struct sizes at, void **arguments, int cooperative, int unknown) {
    struct named *f;
    size_t size = 0;
    int most = 1;
    if (kernel(host, &f) || cooperative && cudaOccupancyMaxActiveBlocksPerMultiprocessor(
            &most, host, at.block.x * at.block.y * at.block.z, at.shared))
        return last;
    if (unknown)
        return refuse(f->name, UNSUPPORTED, "launch attribute %d is not known", unknown);
    number threads = (number)at.block.x * at.block.y * at.block.z;
    if (threads < 1 || threads > MAX_THREADS_PER_BLOCK || at.block.z > 64 || !at.grid.x || !at.grid.y || !at.grid.z)
        return refuse(f->name, CONFIGURATION, "no GPU takes %u * %u * %u blocks of %u * %u * %u threads", at.grid.x,
                      at.grid.y, at.grid.z, at.block.x, at.block.y, at.block.z);
    if ((number)at.shared > f->dynamic && at.shared + f->shared > MAX_SHARED_MEMORY_PER_BLOCK)
        return refuse(f->name, INVALID, "%zu bytes of dynamic shared memory, and %zu of arrays, are more than 48 KiB; "
                      "cudaFuncSetAttribute can allow that", at.shared, (size_t)f->shared);
    if (cooperative && (number)at.grid.x * at.grid.y * at.grid.z > most * MULTIPROCESSOR_COUNT)
        return refuse(f->name, TOO_LARGE, "%d blocks of a cooperative launch can be there at once, not %u * %u * %u",
                      (int)(most * MULTIPROCESSOR_COUNT), at.grid.x, at.grid.y, at.grid.z);
    for (number n = 0; n < f->count; n++)
        size += f->sizes[n];
    char bytes[size + 1], *place = bytes;
    for (number n = 0; n < f->count; place += f->sizes[n++])
        memcpy(place, arguments[n], f->sizes[n]);
    fflush(stdout); /* what kernels print comes after it */
    return ASK("launch", bytes, size, f->id, at.grid.x, at.grid.y, at.grid.z, at.block.x, at.block.y, at.block.z,
               at.shared, N(at.stream), cooperative);
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
    if (depth == sizeof pushed / sizeof *pushed)
        quit("too many launches within the arguments of launches");
    pushed[depth++] = (struct sizes){grid, block, shared, stream};
    return 0;
}

error __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    struct sizes *at = &pushed[--depth];
    *grid = at->grid, *block = at->block, *shared = at->shared, *(void **)stream = at->stream;
    return 0;
}

error cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **arguments, size_t shared, void *stream) {
    return launch(host, (struct sizes){grid, block, shared, stream}, arguments, 0, 0);
}

SAME(__cudaLaunchKernel, cudaLaunchKernel)

error cudaLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block, void **arguments, size_t shared,
                                  void *stream) {
    return launch(host, (struct sizes){grid, block, shared, stream}, arguments, 1, 0);
}

error cudaLaunchKernelExC(const struct config *config, const void *host, void **arguments) {
    int cooperative = 0, unknown = 0;
    for (unsigned n = 0; n < config->count; n++)
        switch (config->attributes[n].id) {
        case 2: cooperative = config->attributes[n].value.number; break;
        case 0: case 1: case 3: case 6: case 8: case 9: case 10: break; /* which order or hurry, and change no result */
        default: unknown = config->attributes[n].id;
        }
    return launch(host, config->sizes, arguments, cooperative, unknown);
}

error cudaGetKernel(void **found, const void *host) { return (*found = find(functions, host)) ? 0 : keep(NO_FUNCTION); }
SAME(__cudaGetKernel, cudaGetKernel)

error cudaFuncSetAttribute(const void *host, int attribute, int value) {
    struct named *f = find(functions, host);
    if (!f)
        return keep(NO_FUNCTION);
    if (attribute == 9) /* which part of a cache is shared memory */
        return 0;
    if (attribute != 8) /* how much dynamic shared memory there may be */
        return keep(UNSUPPORTED);
    return value < 0 || value > MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ? keep(INVALID) : (f->dynamic = value, 0);
}

struct function { size_t shared, constant, local; int threads, registers, ptx, binary, cached, dynamic, carveout; };
error cudaFuncGetAttributes(struct function *about, const void *host) {
    struct named *f;
    if (kernel(host, &f))
        return last;
    int most = f->dynamic ? f->dynamic : MAX_SHARED_MEMORY_PER_BLOCK - f->shared;
    *about = (struct function){f->shared, 0, f->local, MAX_THREADS_PER_BLOCK, 32, f->module->generation, GENERATION, 0,
                               most, -1};
    return 0;
}

SAME(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, cudaOccupancyMaxActiveBlocksPerMultiprocessor)

/* Streams and events: handles are numbers ------------------------------------------------------------------------ */

enum { EVENT, STREAM, APART };
static error make(const char *name, void **handle, number kind) {
    static number handles = 16; /* the first ones have a meaning */
    *handle = (void *)__atomic_add_fetch(&handles, 1, __ATOMIC_RELAXED);
    apart |= kind == APART;
    return ASK("hold", name, strlen(name), N(*handle), kind);
}

error cudaStreamCreate(void **stream) { return make(__func__, stream, STREAM); }
error cudaStreamCreateWithFlags(void **stream, unsigned how) { return make(__func__, stream, how & 1 ? APART : STREAM); }
SAME(cudaStreamCreateWithPriority, cudaStreamCreateWithFlags)
error cudaStreamDestroy(void *stream) { return CALL("forget", N(stream)); }
error cudaStreamSynchronize(void *stream) { return CALL("wait", N(stream)); }
error cudaStreamQuery(void *stream) { return CALL("wait", N(stream)); } /* for all that was issued is done */
error cudaStreamWaitEvent(void *stream, void *event, unsigned flags) { return CALL("order", N(stream), N(event)); }
error cudaEventCreate(void **event) { return make(__func__, event, EVENT); }
SAME(cudaEventCreateWithFlags, cudaEventCreate)
error cudaEventDestroy(void *event) { return CALL("forget", N(event)); }
error cudaEventRecord(void *event, void *stream) { return CALL("record", N(event), N(stream)); }
SAME(cudaEventRecordWithFlags, cudaEventRecord)
error cudaEventSynchronize(void *event) { return CALL("wait", N(event)); }
error cudaEventQuery(void *event) { return CALL("wait", N(event)); }

error cudaEventElapsedTime(float *milliseconds, void *start, void *end) {
    error status = CALL("elapsed", N(start), N(end));
    *milliseconds = status ? 0 : answer.numbers[0] * 1e-6f; /* nanoseconds came */
    return status;
}

error cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { return *least = *greatest = 0; }
error cudaDeviceSynchronize(void) { return CALL("finish"); }
SAME(cudaThreadSynchronize, cudaDeviceSynchronize)

error cudaDeviceReset(void) {
    LOCKED
    for (struct memory *m = memories, *next; m; m = next) {
        next = m->next;
        if (m->type)
            end(__func__, m->start, m->type);
    }
    return CALL("finish");
}

/* What the host is to do in a stream: at once, for all before it is done. */
error cudaLaunchHostFunc(void *stream, void (*call)(void *), void *data) { return call(data), 0; }
error cudaStreamAddCallback(void *stream, void (*call)(void *, error, void *), void *data, unsigned flags) {
    return call(stream, 0, data), 0;
}

/* The device: what host.toml says, and the compiler of this file is told ------------------------------------------ */

/* Of what cudaDeviceGetAttribute takes: its number, its places in cudaDeviceProp of CUDA 11 and 12 and of later ones,
   its size there, its value. */
#define DEVICE_HAS(X) \
    X(0, 288, 288, 8, FREE) X(8, 296, 296, 8, MAX_SHARED_MEMORY_PER_BLOCK) X(12, 304, 304, 4, MAX_REGISTERS_PER_BLOCK) \
    X(10, 308, 308, 4, WARP_SIZE) X(11, 312, 312, 8, 0x7fffffff) X(1, 320, 320, 4, MAX_THREADS_PER_BLOCK) \
    X(2, 324, 324, 4, MAX_BLOCK_DIM_X) X(3, 328, 328, 4, MAX_BLOCK_DIM_Y) X(4, 332, 332, 4, MAX_BLOCK_DIM_Z) \
    X(5, 336, 336, 4, MAX_GRID_DIM_X) X(6, 340, 340, 4, MAX_GRID_DIM_Y) X(7, 344, 344, 4, MAX_GRID_DIM_Z) \
    X(9, 352, 352, 8, TOTAL_CONSTANT_MEMORY) X(75, 360, 360, 4, COMPUTE_CAPABILITY_MAJOR) \
    X(76, 364, 364, 4, COMPUTE_CAPABILITY_MINOR) X(16, 388, 384, 4, MULTIPROCESSOR_COUNT) \
    X(19, 400, 392, 4, CAN_MAP_HOST_MEMORY) X(31, 576, 560, 4, CONCURRENT_KERNELS) \
    X(41, 604, 588, 4, UNIFIED_ADDRESSING) X(39, 624, 604, 4, MAX_THREADS_PER_MULTIPROCESSOR) \
    X(81, 640, 624, 8, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR) X(82, 648, 632, 4, MAX_REGISTERS_PER_MULTIPROCESSOR) \
    X(40, 600, 584, 4, ASYNC_ENGINE_COUNT) X(83, 652, 636, 4, MANAGED_MEMORY) X(95, 688, 668, 4, COOPERATIVE_LAUNCH) \
    X(89, 676, 656, 4, CONCURRENT_MANAGED_ACCESS) \
    X(97, 696, 672, 8, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) X(106, 712, 688, 4, MAX_BLOCKS_PER_MULTIPROCESSOR) \
    X(111, 720, 696, 8, 1024) X(87, 668, 0, 4, SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO)
#define ROW(id, before, after, size, value) {id, CUDART < 13 ? before : after, size, value},
static const struct { int id, place, size; number value; } device_has[] = {DEVICE_HAS(ROW)};
#define EACH(row, table) for (const typeof(*table) *row = table; row < table + sizeof table / sizeof *row; row++)

error cudaGetDeviceProperties(char *properties, int device) {
    if (device)
        return keep(NO_DEVICE);
    memset(properties, 0, CUDART == 11 ? 728 : CUDART == 12 ? 1032 : 1008);
    strcpy(properties, "warpwatch (PTX on the CPU)");
    EACH(row, device_has)
        if (row->place)
            memcpy(properties + row->place, &row->value, row->size);
    return 0;
}

SAME(cudaGetDeviceProperties_v2, cudaGetDeviceProperties)

error cudaDeviceGetAttribute(int *value, int attribute, int device) {
    if (device)
        return keep(NO_DEVICE);
    *value = 0;
    EACH(row, device_has)
        if (row->id == attribute)
            *value = row->value;
    return 0;
}

static size_t limits[8] = {1024, 1 << 20, 8 << 20}; /* of the stack, of what printf keeps, of the heap */
error cudaDeviceSetLimit(unsigned n, size_t value) { return n > 7 ? keep(INVALID) : (limits[n] = value, 0); }
error cudaDeviceGetLimit(size_t *value, unsigned n) { return n > 7 ? keep(INVALID) : (*value = limits[n], 0); }
error cudaSetDevice(int device) { return device ? keep(NO_DEVICE) : 0; }
error cudaGetDevice(int *device) { return *device = 0; }
error cudaGetDeviceCount(int *count) { return *count = 1, 0; }
error cudaDeviceCanAccessPeer(int *can, int device, int peer) { return *can = 0; }
error cudaDriverGetVersion(int *version) { return *version = CUDART * 1000, 0; }
SAME(cudaRuntimeGetVersion, cudaDriverGetVersion)
error cudaPeekAtLastError(void) { return last; }

error cudaGetLastError(void) {
    error status = last;
    last = 0;
    return status;
}

#define NOTHING(name) error name(void) { return 0; } /* whatever it takes */
NOTHING(cudaMemAdvise) NOTHING(cudaMemAdvise_v2) NOTHING(cudaMemPrefetchAsync) NOTHING(cudaMemPrefetchAsync_v2)
NOTHING(cudaFuncSetCacheConfig) NOTHING(cudaFuncSetSharedMemConfig) NOTHING(cudaDeviceSetCacheConfig)
NOTHING(cudaDeviceSetSharedMemConfig) NOTHING(cudaSetDeviceFlags) NOTHING(cudaProfilerStart) NOTHING(cudaProfilerStop)
NOTHING(cudaStreamAttachMemAsync)

/* Errors that come from here */
static const struct { error status; const char *name, *text; } errors[] = {
    {0, "cudaSuccess", "no error"},
    {INVALID, "cudaErrorInvalidValue", "invalid argument"},
    {NO_MEMORY, "cudaErrorMemoryAllocation", "out of memory"},
    {FORKED, "cudaErrorInitializationError", "initialization error"},
    {NO_SYMBOL, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {CONFIGURATION, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {NO_FUNCTION, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {NO_DEVICE, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {FAILED, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {TOO_LARGE, "cudaErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch"},
    {UNSUPPORTED, "cudaErrorNotSupported", "operation not supported (warpwatch says why at the end)"},
};

const char *cudaGetErrorString(error status) {
    EACH(row, errors)
        if (row->status == status)
            return row->text;
    return "unrecognized error code";
}

const char *cudaGetErrorName(error status) {
    EACH(row, errors)
        if (row->status == status)
            return row->name;
    return "unrecognized error code";
}
