// Fits w to 0, 1/N, 2/N, ... as one of the ranks that the environment names: Rust, by declarations made by hand.
use std::ffi::CStr;
use std::os::raw::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};

#[repr(C)]
struct Tensor {
    name: *const c_char,
    ndim: u32,
    shape: *const u64,
    frozen: bool,
    set: u32,
    init: c_int,
    init_value: f64,
    init_seed: u64,
}

#[repr(C)]
struct Options {
    socket: *const c_char,
    job: *const c_char,
    rank: i32,
    world_size: u32,
    local_world_size: u32,
    timeout_ms: u32,
    incarnation: u32,
}

#[repr(C)]
struct Set {
    optimizer: *const c_char,
    values: [f64; 7],
}

#[repr(C)]
struct Step {
    sets: *const Set,
    n_sets: u32,
    clip_norm: f64,
    loss_scale: f64,
    growth_interval: u32,
    blob: *const c_void,
    blob_bytes: usize,
    sync: *mut c_void,
}

#[link(name = "zero")]
extern "C" {
    fn zero_layout_new(layout: *mut *mut c_void) -> c_int;
    fn zero_layout_group(layout: *mut c_void, name: *const c_char, dtype: c_int, ranks: *const u32, n_ranks: u32,
                         divisor: f64, group: *mut u32) -> c_int;
    fn zero_layout_tensor(layout: *mut c_void, group: u32, tensor: *const Tensor, index: *mut u32) -> c_int;
    fn zero_layout_free(layout: *mut c_void);
    fn zero_connect(options: *const Options, client: *mut *mut c_void) -> c_int;
    fn zero_attach(client: *mut c_void, layout: *const c_void, needs: *const c_void) -> c_int;
    fn zero_first_values(client: *mut c_void, values: *const *const c_void) -> c_int;
    fn zero_steps(client: *const c_void) -> u64;
    fn zero_fetch(client: *mut c_void, group: u32, view: *mut *const c_void) -> c_int;
    fn zero_grad(client: *mut c_void, group: u32, grad: *mut *mut c_void) -> c_int;
    fn zero_push(client: *mut c_void, group: u32, present: *const u8, last: bool, sync: *mut c_void) -> c_int;
    fn zero_step(client: *mut c_void, step: *const Step, result: *mut c_void) -> c_int;
    fn zero_error(client: *const c_void) -> *const c_char;
    fn zero_close(client: *mut c_void);
}

const N: usize = 1000;
const STEPS: u64 = 300;
const FP32: c_int = 1;

fn ok(client: *mut c_void, status: c_int) {
    if status != 0 {
        eprintln!("{}: {}", status, unsafe { CStr::from_ptr(zero_error(client)) }.to_string_lossy());
        std::process::exit(1);
    }
}

fn main() {
    let (shape, first) = ([N as u64], [0.25f32; N]);
    let w = Tensor { name: b"w\0".as_ptr().cast(), ndim: 1, shape: shape.as_ptr(), frozen: false, set: 0, init: 0, init_value: 0.0,
                     init_seed: 0 };
    let options = Options { socket: null(), job: null(), rank: 0, world_size: 0, local_world_size: 0, timeout_ms: 0,
                            incarnation: 0 };
    let set = Set { optimizer: b"adamw\0".as_ptr().cast(), values: [0.01, 0.9, 0.999, 1e-8, 0.01, 0.0, 0.0] };
    let step = Step { sets: &set, n_sets: 1, clip_norm: 0.0, loss_scale: 0.0, growth_interval: 0, blob: null(), blob_bytes: 0,
                      sync: null_mut() };
    let (mut z, mut layout, mut group, mut tensor) = (null_mut(), null_mut(), 0, 0);
    unsafe {
        ok(z, zero_layout_new(&mut layout));
        ok(z, zero_layout_group(layout, b"all\0".as_ptr().cast(), FP32, null(), 0, 0.0, &mut group));
        ok(z, zero_layout_tensor(layout, group, &w, &mut tensor));
        ok(z, zero_connect(&options, &mut z));
        ok(z, zero_attach(z, layout, null()));
        ok(z, zero_first_values(z, [first.as_ptr().cast()].as_ptr()));
        loop {
            let (made, mut loss) = (zero_steps(z), 0.0);
            let (mut view, mut grad) = (null(), null_mut());
            ok(z, zero_fetch(z, group, &mut view));
            ok(z, zero_grad(z, group, &mut grad));
            let view = std::slice::from_raw_parts(view.cast::<f32>(), N);
            let grad = std::slice::from_raw_parts_mut(grad.cast::<f32>(), N);
            for i in 0..N {
                grad[i] = view[i] - i as f32 / N as f32;
                loss += f64::from(grad[i] * grad[i] / 2.0);
            }
            if made == 0 || made >= STEPS {
                println!("step {made} loss {loss:.6}");
            }
            if made >= STEPS {
                break;
            }
            ok(z, zero_push(z, group, null(), true, null_mut()));
            ok(z, zero_step(z, &step, null_mut()));
        }
        zero_layout_free(layout);
        zero_close(z);
    }
}
