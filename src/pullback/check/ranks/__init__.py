"""Check across ranks: a Function that communicates, as one function of all ranks' inputs.

With N ranks the program is one joint function `(x_0, ..., x_{N-1}) -> (y_0, ..., y_{N-1})`. What
its gradients must be depends on what the values are to the author, `placements`; what they are is
told by differences of the joint forward, in which each rank's input is moved in turn, `joint`.

    placements    sharded, replicated, partial: what each says of values and gradients
    collectives   what a rank sends and receives, seen from inside its process
    underway      memory that an asynchronous collective still writes or sends
    commands      what a rank is asked to do, and its answer
    given         the arguments of a rank
    spread        DTensors, and cotangents in memory
    rank          one rank: it does what it is asked
    crew          the ranks as processes of their own, watched from outside
    early         what is loaded before anything else
    existing      the ranks of a process group that is already there, as under torchrun
    blocks        the ranks that belong together
    slope         how outputs change when one input of one rank moves
    joint         values and derivatives of the joint function
    consistency   with which placements the gradients are right
    diagnosis     by which fault they are wrong
    runner        the rules, one after the other, and the report
"""
