#include "core/model/model.h"
#include "core/model/choose.h"
#include "core/plan.h"
#include "sim/timed/timed.h"
#include "core/ops/op.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
static double simulated(struct mk_problem q, double *model){
  struct mk_plan p; char e[256];
  if(plan_build(&p,&q,0,0,e,sizeof e)){printf("refused %s\n",e);return NAN;}
  struct model_time mt; *model = model_plan(machine_default(), &p, &mt) ? NAN : mt.ns/1e3;
  struct timed_config c={.plan=&p,.machine=machine_default(),.launches=1,.seed=1}; struct timed_result r;
  if(timed_run(&c,&r)){printf("failed %s\n",r.sentence);return NAN;}
  return r.ns/1e3;
}
int main(int argc, char **argv){
    uint32_t gpus = argc > 1 ? atoi(argv[1]) : 4;
    static const uint64_t rows[] = {1,16,32,64,100,128,256,384,512,768,1024,1500,2048};
    for(int heap=1;heap>=0;heap--) for(int w=0;w<2;w++) for (int i=0;i<13;i++){
      printf("heap %d %s M %4u:", heap, w?"8192,4096":"4096,8192",(unsigned)rows[i]);
      for(uint32_t s=1;s<=3;s++){
        struct mk_problem q = {.op=MK_OP_GEMM_AR,.exec=MK_EXEC_CUDA,.sms=132,.topo={1,gpus,0},.timeout_ns=MK_TIMEOUT_NS,.m=rows[i],.n=w?8192:4096,.k=w?4096:8192,.c_in_heap=heap};
        q.tuning.shots=s; double m=0; double t=simulated(q,&m); printf("  %u: %6.1f (%6.1f)",s,t,m);
      }
      struct mk_problem q = {.op=MK_OP_GEMM_AR,.exec=MK_EXEC_CUDA,.sms=132,.topo={1,gpus,0},.timeout_ns=MK_TIMEOUT_NS,.m=rows[i],.n=w?8192:4096,.k=w?4096:8192,.c_in_heap=heap};
      struct mk_tuning t; model_choose(machine_default(),&q,&t); q.tuning=t; struct mk_plan p; char e[256]; plan_build(&p,&q,0,0,e,sizeof e);
      printf("  default %u, tile %ux%u\n", p.problem.tuning.shots,p.problem.tuning.tile_m,p.problem.tuning.tile_n);
      fflush(stdout);
    }
}
