/* Behind the roles that broken_cta.h or broken_ops.h was put before: calls go to the CTA interface
 * again. */
#undef mk_cta_wait
#undef mk_cta_wait_all
#undef mk_cta_copy
#undef mk_cta_copy_rows
#undef mk_cta_copy_packed
#undef mk_cta_deliver
#undef mk_cta_combine
#undef mk_cta_wait_others
#undef mk_cta_add_each
#undef mk_cta_route
#undef mk_cta_settle
#undef mk_cta_signal
#undef mk_cta_add
#undef mk_cta_put
#undef mk_cta_drain
