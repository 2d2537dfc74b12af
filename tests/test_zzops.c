int other_main(void);
#define main other_main
#include "tests/test_hopper_ops.c"
#undef main
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gemm_rs)};
    const struct CMUnitTest shared[] = {cmocka_unit_test(test_gemm_ar_shared), cmocka_unit_test(test_faults), cmocka_unit_test(test_gemm_ar)};
    return argc > 1 ? cmocka_run_group_tests(shared, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
}
