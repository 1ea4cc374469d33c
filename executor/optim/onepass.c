/* One pass over a parameter: bf16 gradient in, fp32 master and moments updated, bf16 parameter out.
 *
 * Torch's fused CPU optimizers want gradient, parameter and moments of one dtype, so bf16 training
 * with fp32 masters goes through memory three times: a cast, the step, a cast. Here all of it is
 * done while an element is in a register: 28 bytes move where 40 did.
 *
 * Every bit is that of torch's fused step on fp32 tensors. For that, three things matter:
 * - scalars are worked out in double and rounded to float once;
 * - where torch's kernels fuse a multiplication into an addition, this says fma; nowhere else may
 *   one be fused, so this must be compiled with -ffp-contract=off;
 * - of a moment's two products, torch's compiler chose which to fuse: the kept moment's or the
 *   gradient's. It chose once for whole vectors and once for the n modulo `width` elements that are
 *   left over. `width`, `whole_kept` and `rest_kept` say so; they are found out by comparison.
 *
 * Rounding to bf16 is to nearest even. What bits a NaN gets depends in torch on where it stands, so
 * gantry_adam returns 1 if it wrote any, for the caller to redo that cast; else 0.
 *
 * Pointers: `grad` and `param` are bf16, all others fp32; n elements each, no overlap. `param` may
 * be null, where nothing but the master is kept.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* Chunks of threads begin at multiples of this many elements: a cache line of bf16, twice. */
enum { CHUNK = 64 };

INLINE float of_bf16(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE uint16_t to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)(value != value ? 0x7fc0u : rounded);
}

/* The first element of the `part`th of `parts` chunks of n elements. */
static int64_t first_of(int64_t n, int part, int parts)
{
    if (part == parts)
        return n;
    return n / parts * part / CHUNK * CHUNK;
}

typedef struct {
    float scale;  /* of the gradient */
    float keep;   /* decoupled decay: what is left of the master; 1 without */
    float l2;     /* decay added to the gradient, if has_l2 */
    float weight; /* of the gradient in the first moment */
    float beta2, weight_sq;
    float root_correction; /* square root of the second moment's bias correction */
    float eps;
    float minus_step;
    int has_l2;
} Adam;

/* Elements begin to end. The last four arguments are constants where this is called, or the loop
 * would branch. `light`: the weight is below one half, interpolate from the moment and not from the
 * gradient; `kept`: the kept moment's product is the fused one; `out`: there is a param. */
INLINE uint32_t adam_range(const uint16_t *restrict grad, float *restrict master,
                           float *restrict avg, float *restrict avg_sq, uint16_t *restrict param,
                           int64_t begin, int64_t end, Adam k, int has_l2, int light, int kept,
                           int out)
{
    uint32_t nan = 0;
#pragma omp simd reduction(| : nan)
    for (int64_t i = begin; i < end; i++) {
        float g = of_bf16(grad[i]) * k.scale;
        const float old = master[i];
        if (has_l2)
            g = fmaf(old, k.l2, g);
        const float away = g - avg[i];
        const float m = light ? fmaf(k.weight, away, avg[i]) : fmaf(k.weight - 1.0f, away, g);
        const float v = kept ? fmaf(avg_sq[i], k.beta2, k.weight_sq * g * g)
                             : fmaf(k.weight_sq * g, g, avg_sq[i] * k.beta2);
        const float denominator = sqrtf(v) / k.root_correction + k.eps;
        const float updated = old * k.keep + k.minus_step * m / denominator;
        avg[i] = m;
        avg_sq[i] = v;
        master[i] = updated;
        if (out)
            param[i] = to_bf16(updated);
        nan |= updated != updated;
    }
    return nan;
}

#define ADAM_OUT(has_l2, light, out)                                                             \
    (kept ? adam_range(grad, master, avg, avg_sq, param, begin, end, k, has_l2, light, 1, out)   \
          : adam_range(grad, master, avg, avg_sq, param, begin, end, k, has_l2, light, 0, out))
#define ADAM_RANGE(has_l2, light)                                                                \
    (param ? ADAM_OUT(has_l2, light, 1) : ADAM_OUT(has_l2, light, 0))

static uint32_t adam_chunk(const uint16_t *grad, float *master, float *avg, float *avg_sq,
                           uint16_t *param, int64_t begin, int64_t end, Adam k, int kept)
{
    const int light = fabsf(k.weight) < 0.5f;
    if (k.has_l2)
        return light ? ADAM_RANGE(1, 1) : ADAM_RANGE(1, 0);
    return light ? ADAM_RANGE(0, 1) : ADAM_RANGE(0, 0);
}

/* `step` counts from 1; `decoupled`: weight decay as AdamW has it, else added to the gradient. */
int gantry_adam(const uint16_t *grad, float *master, float *avg, float *avg_sq, uint16_t *param,
                int64_t n, double lr, double beta1, double beta2, double eps, double weight_decay,
                int decoupled, double step, double grad_scale, int width, int whole_kept,
                int rest_kept, int threads)
{
    const Adam k = {
        .scale = (float)grad_scale,
        .keep = (float)(decoupled ? fma(-lr, weight_decay, 1.0) : 1.0),
        .l2 = (float)weight_decay,
        .has_l2 = !decoupled && weight_decay != 0.0,
        .weight = (float)(1.0 - beta1),
        .beta2 = (float)beta2,
        .weight_sq = (float)(1.0 - beta2),
        .root_correction = (float)sqrt(1.0 - pow(beta2, step)),
        .eps = (float)eps,
        .minus_step = (float)-(lr / (1.0 - pow(beta1, step))),
    };
    const int64_t whole = n - n % width;
    uint32_t nan = adam_chunk(grad, master, avg, avg_sq, param, whole, n, k, rest_kept);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static, 1) \
    reduction(| : nan)
    for (int part = 0; part < threads; part++)
        nan |= adam_chunk(grad, master, avg, avg_sq, param, first_of(whole, part, threads),
                          first_of(whole, part + 1, threads), k, whole_kept);
    return nan != 0;
}
