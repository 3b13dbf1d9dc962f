! Fits w to 0, 1/N, 2/N, ... as one of the ranks that the environment names: Fortran, by declarations made by hand.
module zero
  use, intrinsic :: iso_c_binding
  implicit none

  type, bind(c) :: zero_tensor
    type(c_ptr) :: name = c_null_ptr
    integer(c_int32_t) :: ndim = 0
    type(c_ptr) :: shape = c_null_ptr
    logical(c_bool) :: frozen = .false.
    integer(c_int32_t) :: set = 0
    integer(c_int) :: init = 0
    real(c_double) :: init_value = 0
    integer(c_int64_t) :: init_seed = 0
  end type

  type, bind(c) :: zero_options
    type(c_ptr) :: socket = c_null_ptr, job = c_null_ptr
    integer(c_int32_t) :: rank = 0, world_size = 0, local_world_size = 0, timeout_ms = 0, incarnation = 0
  end type

  type, bind(c) :: zero_set
    type(c_ptr) :: optimizer = c_null_ptr
    real(c_double) :: values(7) = [0.01d0, 0.9d0, 0.999d0, 1d-8, 0.01d0, 0d0, 0d0]
  end type

  type, bind(c) :: step_type
    type(c_ptr) :: sets = c_null_ptr
    integer(c_int32_t) :: n_sets = 0
    real(c_double) :: clip_norm = 0, loss_scale = 0
    integer(c_int32_t) :: growth_interval = 0
    type(c_ptr) :: blob = c_null_ptr
    integer(c_size_t) :: blob_bytes = 0
    type(c_ptr) :: sync = c_null_ptr
  end type

  interface
    integer(c_int) function zero_layout_new(layout) bind(c)
      import; type(c_ptr) :: layout
    end function
    integer(c_int) function zero_layout_group(layout, name, dtype, ranks, n_ranks, divisor, group) bind(c)
      import; type(c_ptr), value :: layout, ranks; character(kind=c_char) :: name(*); integer(c_int), value :: dtype
      integer(c_int32_t), value :: n_ranks; real(c_double), value :: divisor; integer(c_int32_t) :: group
    end function
    integer(c_int) function zero_layout_tensor(layout, group, tensor, ret_index) bind(c)
      import; type(c_ptr), value :: layout; integer(c_int32_t), value :: group; type(zero_tensor) :: tensor
      integer(c_int32_t) :: ret_index
    end function
    integer(c_int) function zero_connect(options, client) bind(c)
      import; type(zero_options) :: options; type(c_ptr) :: client
    end function
    integer(c_int) function zero_attach(client, layout, needs) bind(c)
      import; type(c_ptr), value :: client, layout, needs
    end function
    integer(c_int) function zero_first_values(client, values) bind(c)
      import; type(c_ptr), value :: client; type(c_ptr) :: values(*)
    end function
    integer(c_int64_t) function zero_steps(client) bind(c)
      import; type(c_ptr), value :: client
    end function
    integer(c_int) function zero_fetch(client, group, view) bind(c)
      import; type(c_ptr), value :: client; integer(c_int32_t), value :: group; type(c_ptr) :: view
    end function
    integer(c_int) function zero_grad(client, group, grad) bind(c)
      import; type(c_ptr), value :: client; integer(c_int32_t), value :: group; type(c_ptr) :: grad
    end function
    integer(c_int) function zero_push(client, group, present, last, sync) bind(c)
      import; type(c_ptr), value :: client, present, sync; integer(c_int32_t), value :: group
      logical(c_bool), value :: last
    end function
    integer(c_int) function zero_step(client, step, result) bind(c)
      import; type(c_ptr), value :: client, result; type(step_type) :: step
    end function
    subroutine zero_layout_free(layout) bind(c)
      import; type(c_ptr), value :: layout
    end subroutine
    subroutine zero_close(client) bind(c)
      import; type(c_ptr), value :: client
    end subroutine
  end interface
end module

program fit
  use zero
  implicit none
  integer, parameter :: n = 1000, steps = 300
  integer(c_int), parameter :: fp32 = 1
  character(kind=c_char), target :: name(2) = ['w', c_null_char], adamw(6) = ['a', 'd', 'a', 'm', 'w', c_null_char]
  integer(c_int64_t), target :: shape(1) = [n]
  real(c_float), target :: first(n) = 0.25
  real(c_float), pointer :: w(:), g(:)
  type(c_ptr) :: client = c_null_ptr, layout = c_null_ptr, view, grad, values(1)
  type(zero_tensor) :: tensor
  type(zero_options) :: options
  type(zero_set), target :: set
  type(step_type) :: step
  integer(c_int32_t) :: group, index
  integer(c_int64_t) :: made
  integer :: i

  tensor%name = c_loc(name)
  tensor%ndim = 1
  tensor%shape = c_loc(shape)
  set%optimizer = c_loc(adamw)
  step%sets = c_loc(set)
  step%n_sets = 1
  values(1) = c_loc(first)
  call ok(zero_layout_new(layout))
  call ok(zero_layout_group(layout, 'all'//c_null_char, fp32, c_null_ptr, 0, 0d0, group))
  call ok(zero_layout_tensor(layout, group, tensor, index))
  call ok(zero_connect(options, client))
  call ok(zero_attach(client, layout, c_null_ptr))
  call ok(zero_first_values(client, values))
  do
    made = zero_steps(client)
    call ok(zero_fetch(client, group, view))
    call ok(zero_grad(client, group, grad))
    call c_f_pointer(view, w, [n])
    call c_f_pointer(grad, g, [n])
    do i = 1, n
      g(i) = w(i) - real(i - 1) / n
    end do
    if (made == 0 .or. made >= steps) print '(a, i0, a, f0.6)', 'step ', made, ' loss ', sum(g ** 2 / 2)
    if (made >= steps) exit
    call ok(zero_push(client, group, c_null_ptr, .true._c_bool, c_null_ptr))
    call ok(zero_step(client, step, c_null_ptr))
  end do
  call zero_layout_free(layout)
  call zero_close(client)

contains

  subroutine ok(status)
    integer(c_int), intent(in) :: status

    if (status /= 0) error stop status
  end subroutine
end program
